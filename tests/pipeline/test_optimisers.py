"""Every optimiser by every schedule: each block for itself, all blocks at once, or refused."""

import jax
import jax.numpy as jnp
import networks
import numpy as np
import optax
import pytest
from alike import line
from networks import cross_entropy, data, net, run, whole
from optimiser_cases import BLOCKS, OPTIMISERS
from schedule_cases import CASES

from parscan_bp import pipeline
from parscan_bp.pipeline.updating import schedule_for

FLUSHED = {
    "BackPropagation": pipeline.BackPropagation(),
    "GPipe": pipeline.GPipe(2),
    "OneFOneB": pipeline.OneFOneB(2),
    "ZeroBubble": pipeline.ZeroBubble(2, lookahead=2),
    "DSP of no delays": pipeline.DSP((0, 0, 0), (0, 0, 0)),
}
OVERLAPPING = [pipeline.PipeDream(), pipeline.PipeDream2BW(4), pipeline.DSP((1, 1, 0), (4, 2, 0))]
GLOBAL = ["clip_by_global_norm", "apply_if_finite", "multi_transform, all"]
EACH = [name for name, case in OPTIMISERS.items() if case.kind != "refused"]
CLIPPED = optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(0.1, momentum=0.9))


@pytest.mark.parametrize("name", OPTIMISERS)
def test_who_is_given_which_gradients(name):
    case, params = OPTIMISERS[name], net(BLOCKS)[1]
    for schedule in FLUSHED.values():
        if case.kind == "refused":
            with pytest.raises((TypeError, ValueError, NotImplementedError), match=case.words):
                schedule_for(schedule, case.made, params)
        else:
            assert schedule_for(schedule, case.made, params).together == (case.kind == "all")
    for schedule in OVERLAPPING:
        if case.kind == "apart":
            assert schedule_for(schedule, case.made, params) is schedule
            continue
        with pytest.raises((TypeError, ValueError, NotImplementedError)) as told:
            schedule_for(schedule, case.made, params)
        if case.kind == "all":
            assert f"{schedule} updates each block by itself" in str(told.value)
            assert "(BackPropagation, GPipe, OneFOneB, InterleavedOneFOneB, ZeroBubble)" in str(
                told.value
            )


def _batches(count=4, bad=1):
    batches = data(count)
    x, labels = batches[bad]
    batches[bad] = x.at[3, 1].set(jnp.nan), labels
    return batches


def _plain(optimiser, batches):
    """`jax.grad` of the whole network and one optimiser of the list of all parameters."""
    functions, params = net(BLOCKS)
    loss, state = whole(functions), optimiser.init(params)

    @jax.jit
    def step(params, state, batch):
        updates, state = optimiser.update(jax.grad(loss)(params, batch), state, params)
        return optax.apply_updates(params, updates), state

    for batch in batches:
        params, state = step(params, state, batch)
    return params, state


@pytest.mark.parametrize(
    "name", [n if n in GLOBAL else pytest.param(n, marks=pytest.mark.slow) for n in EACH]
)
def test_flushed_schedules_do_what_the_optimiser_does_without_a_pipeline(name):
    case = OPTIMISERS[name]
    skips = name in ("apply_if_finite", "loss scaling")
    batches = _batches() if skips else data(4)
    if "a block" in name:
        # What takes the params of a block is given those of each.
        made = optax.GradientTransformation(
            lambda params: [case.made.init(own) for own in params],
            lambda *trees: map(list, zip(*map(case.made.update, *trees), strict=True)),
        )
    else:
        made = case.made
    wanted, _ = _plain(made, batches)
    functions, params = net(BLOCKS)
    for schedule in list(FLUSHED.values())[: 2 if name in GLOBAL else None]:
        got = pipeline.run(functions, schedule, case.made, cross_entropy, params, batches)
        for a, b in zip(jax.tree.leaves(got.params), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5, err_msg=str(schedule))
        assert networks.largest_difference(got.params, params) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in EACH if OPTIMISERS[n].kind == "apart"])
def test_overlapping_schedules_run_it_with_the_gradients_of_each_block(name):
    optimiser = OPTIMISERS[name].made
    for schedule in OVERLAPPING:
        made, log = run(schedule, BLOCKS, 9, optimiser)
        for k, weights in enumerate(log.weights):
            state, step = optimiser.init(weights[0]), jax.jit(optimiser.update)
            for number in range(9):
                updates, state = step(log.gradients[k, number], state, weights[number])
                moved = optax.apply_updates(weights[number], updates)
                assert networks.largest_difference(moved, weights[number + 1]) < 1e-6
            assert networks.same_bits(made.params[k], weights[-1])


def _step(w, x):
    return x + jnp.tanh(x @ w["kernel"] + w["bias"])


def _square(blocks=BLOCKS):
    random = np.random.default_rng(0)
    make = lambda *shape: jnp.asarray(0.5 * random.normal(size=shape), jnp.float32)  # noqa: E731
    return [_step] * blocks, [{"kernel": make(4, 4), "bias": make(4)} for _ in range(blocks)]


@pytest.mark.parametrize("name", ["ZeroBubble"])
def test_executors_agree_on_an_optimiser_of_all_blocks(name, run_on_devices):
    run_on_devices(check_executors, BLOCKS, (name,))


def check_executors(name):
    schedule, batches = FLUSHED[name], _batches()
    functions, params = _square()
    optimiser = optax.apply_if_finite(CLIPPED, 9)
    given = (schedule, optimiser, cross_entropy, params, batches)
    wanted = pipeline.run(functions, *given)
    assert [len(jax.tree.leaves(own)) > 0 for own in wanted.optimiser_states] == [
        True,
        False,
        False,
    ]
    assert int(wanted.optimiser_states[0].total_notfinite) == 1
    threads = pipeline.run(functions, *given, executor=pipeline.Threads())
    assert networks.same_bits(threads.params, wanted.params)
    assert networks.same_bits(threads.optimiser_states, wanted.optimiser_states)
    fed = pipeline.Pipeline(
        functions, params, split=BLOCKS, schedule=schedule, optimiser=optimiser, loss=cross_entropy
    )
    fed.fit(batches)
    assert networks.same_bits(fed.params, wanted.params)
    fed.close()
    spmd = pipeline.run([_step] * BLOCKS, *given, executor=pipeline.Spmd(mesh=line(BLOCKS)))
    for a, b in zip(jax.tree.leaves(spmd), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6, equal_nan=True)


def test_one_program_for_all_stages_updates_all_at_once_without_parts(run_on_devices):
    run_on_devices(check_one_program, 2)


def check_one_program():
    functions, params = _square(2)
    given = (pipeline.BackPropagation(), CLIPPED, cross_entropy, params, data(3))
    wanted = pipeline.run(functions, *given)
    got = pipeline.run([_step] * 2, *given, executor=pipeline.Spmd(mesh=line(2)))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_a_run_goes_on_with_the_state_of_all_blocks(tmp_path):
    functions, params = net(BLOCKS)
    batches, schedule = data(4), pipeline.GPipe(2)
    given = (functions, schedule, CLIPPED, cross_entropy)
    wanted = pipeline.run(*given, params, batches)
    half = pipeline.run(*given, params, batches[:2])
    rest = pipeline.run(*given, half.params, batches[2:], optimiser_states=half.optimiser_states)
    assert networks.same_bits(rest.params, wanted.params)
    apart = [CLIPPED.init(own) for own in params]
    with pytest.raises(ValueError, match=r"optimiser_states\[1\]: got .*; all blocks are updated"):
        pipeline.run(*given, params, batches, optimiser_states=apart)

    def fresh():
        how = {"schedule": schedule, "optimiser": CLIPPED, "loss": cross_entropy}
        return pipeline.Pipeline(functions, params, split=BLOCKS, **how)

    first, second = fresh(), fresh()
    for batch in batches[:2]:
        first.step(batch)
    first.save(tmp_path / "flight")
    second.restore(tmp_path / "flight")
    second.fit(batches[2:])
    assert networks.same_bits(second.params, wanted.params)
    first.close()
    second.close()


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if c.schedule.parts > 1])
def test_together_all_updates_end_a_batch(name):
    schedule, blocks = CASES[name].schedule, CASES[name].blocks
    if any(late != (0, 0) for late in schedule.staleness(blocks)):
        return
    table = schedule_for(schedule, CLIPPED, net(blocks)[1]).table(blocks, 3)
    assert table.together and all(late == (0, 0) for late in table.staleness())
    for n in range(3):
        ticks = {task.tick for task in table.tasks if task.batch == n and task.kind == "update"}
        assert ticks == {max(task.tick for task in table.tasks if task.batch == n)}


def test_stale_says_that_one_delay_takes_it():
    params = [jnp.ones(2), jnp.ones(3)]
    with pytest.raises(NotImplementedError, match=r"gradient of stage 1.*or delays=2, one stage"):
        pipeline.stale(CLIPPED, [2, 2]).init(params)
    with pytest.raises(NotImplementedError, match="gradients of different steps") as told:
        pipeline.stale(optax.apply_if_finite(CLIPPED, 2), [2, 0]).init(params)
    assert "one stage" not in str(told.value)
    assert pipeline.stale(CLIPPED, 2).init(params)


def test_stale_reads_an_update_of_more_arguments_when_it_has_them():
    params = [jnp.ones(2), jnp.ones(3)]
    slower = optax.contrib.reduce_on_plateau()
    apart = pipeline.stale(optax.chain(optax.sgd(0.1), slower), [1, 0])
    apart.update(params, apart.init(params), params, value=1.0)
    clipped = pipeline.stale(optax.chain(CLIPPED, slower), [1, 0])
    state = clipped.init(params)
    with pytest.raises(NotImplementedError, match="depends on the gradient of stage 1"):
        clipped.update(params, state, params, value=1.0)
