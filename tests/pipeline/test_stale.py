"""`stale`: whose steps it repeats bit for bit, what it holds, what it leaves alone."""

import jax
import jax.numpy as jnp
import networks
import numpy as np
import optax
import orbax.checkpoint
import pytest
from networks import Log, apart, cross_entropy, data, largest_difference, net, run, same_bits, whole

from parscan_bp import pipeline
from parscan_bp.pipeline.stale_state import Stage
from parscan_bp.trees import nbytes

OPTIMISERS = {
    "sgd": networks.sgd(0.1, momentum=0.9),
    "adam": networks.adam(0.01),
    "adamw": optax.adamw(0.01),
    "muon": optax.contrib.muon(0.01),
    "schedule": networks.sgd(optax.exponential_decay(0.1, 5, 0.5)),
}
IDENTITY = optax.identity()
EACH = pytest.mark.parametrize(
    "optimiser",
    [
        pytest.param(own, id=name, marks=[pytest.mark.slow] if name == "muon" else [])
        for name, own in OPTIMISERS.items()
    ],
)


def _train(optimiser, steps, gradients, params, *, predict=None, state=None):
    """The params after every step; ``gradients`` of (step, params)."""
    state = networks.placed(optimiser.init(params) if state is None else state)
    update, apply = jax.jit(optimiser.update), jax.jit(optax.apply_updates)
    history = [params]
    for n in range(steps):
        at = params if predict is None else predict(state, params)
        updates, state = update(gradients(n, at), state, params)
        params = apply(params, updates)
        history.append(params)
    return history, state


def _blockwise(blocks, batches, parts=1):
    """Gradients by the programs of the blocks, whose rounding is that of a pipeline's."""

    def gradients(n, params):
        log = Log(params)
        schedule = pipeline.GPipe(parts, recompute=False)
        pipeline.run(
            blocks,
            schedule,
            IDENTITY,
            cross_entropy,
            params,
            [batches[n]],
            executor=pipeline.Simulated(observe=log),
        )
        return [log.gradients[k, 0] for k in range(len(blocks))]

    return gradients


@pytest.mark.parametrize(
    ("schedule", "delays", "name"),
    [
        (pipeline.PipeDream(), [2, 1, 0], "sgd"),
        (pipeline.PipeDream(), [2, 1, 0], "adam"),
        (pipeline.DelayedGradients(), [2, 1, 0], "sgd"),
        (pipeline.PipeDream2BW(4), [1, 1, 1], "adam"),
        (pipeline.BackPropagation(), [0, 0, 0], "sgd"),
    ],
    ids=str,
)
def test_it_moves_the_weights_as_the_pipeline_does_bit_for_bit(schedule, delays, name):
    optimiser, steps = OPTIMISERS[name], 10
    _, log = run(schedule, batches=steps, optimiser=optimiser)
    blocks, params = net(3)
    gradients = _blockwise(blocks, data(steps), schedule.parts)
    history, _ = _train(pipeline.stale(optimiser, delays), steps, gradients, params)
    for n, params in enumerate(history):
        for k, delay in enumerate(delays):
            assert same_bits(params[k], log.weights[k][max(0, n - delay)]), (n, k)


def test_one_delay_for_all_is_2bw_too():
    steps = 10
    _, log = run(pipeline.PipeDream2BW(4), batches=steps)
    blocks, params = net(3)
    gradients = _blockwise(blocks, data(steps), parts=4)
    history, _ = _train(pipeline.stale(OPTIMISERS["sgd"], 1), steps, gradients, params)
    assert all(same_bits(history[-1][k], log.weights[k][steps - 1]) for k in range(3))


GRADIENT = jax.jit(jax.grad(whole(net(3)[0])))


def _gradients(batches):
    return lambda n, params: GRADIENT(params, batches[n])


@EACH
def test_a_delay_of_zero_is_the_optimiser_bit_for_bit(optimiser):
    _, params = net(3)
    gradients = _gradients(data(8))
    wanted, state = _train(optimiser, 8, gradients, params)
    ours, stale_state = _train(pipeline.stale(optimiser, 0), 8, gradients, params)
    assert all(same_bits(a, b) for a, b in zip(ours, wanted, strict=True))
    assert same_bits(stale_state.stages.inner, state)


@pytest.mark.parametrize("name", ["sgd", "adam", pytest.param("muon", marks=pytest.mark.slow)])
def test_a_late_stage_does_what_the_optimiser_does_with_its_gradients(name):
    """Given gradients that do not depend on the weights, its steps are the same, but later."""
    optimiser, (_, params) = OPTIMISERS[name], net(3)
    rng = np.random.default_rng(0)
    draws = [
        jax.tree.map(lambda p: rng.normal(size=p.shape).astype(p.dtype), params) for _ in range(9)
    ]
    delays = [3, 0, 2]
    late, _ = _train(pipeline.stale(optimiser, delays), 9, lambda n, _: draws[n], params)
    plain, _ = _train(apart(optimiser), 9, lambda n, _: draws[n], params)
    for n in range(10):
        for k, delay in enumerate(delays):
            assert largest_difference(late[n][k], plain[max(0, n - delay)][k]) < 1e-6, (n, k)


def test_nothing_is_touched_before_the_first_gradient_arrives():
    optimiser = pipeline.stale(networks.adam(0.1), {"a": 3})
    params = {"a": jnp.ones(2)}
    state = optimiser.init(params)
    fresh = networks.adam(0.1).init(params["a"])
    update = jax.jit(optimiser.update)
    for n in range(5):
        updates, state = update({"a": np.full(2, n + 1.0, np.float32)}, state, params)
        waiting = n < 3
        assert same_bits(state.stages["a"].inner, fresh) == waiting
        assert (float(jnp.abs(updates["a"]).max()) == 0) == waiting
    # A queue filled with zeros would have counted five steps.
    assert int(state.stages["a"].inner[0].count) == 2


@EACH
def test_the_state_has_so_many_gradients_and_no_more(optimiser):
    _, params = net(3)
    delays = [4, 0, 1]
    state = pipeline.stale(optimiser, delays).init(params)
    inner = sum(nbytes(optimiser.init(own)) for own in params)
    queues = sum(d * nbytes(own) for d, own in zip(delays, params, strict=True))
    counters = 4 * sum(d > 0 for d in delays)
    assert nbytes(state) == inner + queues + counters
    after, state = _train(
        pipeline.stale(optimiser, delays), 3, lambda n, p: jax.tree.map(jnp.ones_like, p), params
    )
    assert nbytes(state) == inner + queues + counters and len(after) == 4


def test_it_is_saved_and_resumed_bit_for_bit(tmp_path):
    _, params = net(3)
    optimiser = pipeline.stale(
        networks.adam(0.01),
        [3, 1, 0],
        remedies=[pipeline.ErrorFeedback(), pipeline.WeightPrediction()],
    )
    gradients = _gradients(data(12))
    wanted, _ = _train(optimiser, 12, gradients, params, predict=pipeline.stale_params)
    half, state = _train(optimiser, 5, gradients, params, predict=pipeline.stale_params)
    with orbax.checkpoint.StandardCheckpointer() as saver:
        saver.save(tmp_path / "state", {"params": half[-1], "state": state})
        saver.wait_until_finished()
        fresh = {"params": params, "state": optimiser.init(params)}
        found = saver.restore(tmp_path / "state", jax.eval_shape(lambda: fresh))
    assert same_bits(found["state"], state)
    rest, _ = _train(
        optimiser,
        7,
        lambda n, p: gradients(n + 5, p),
        found["params"],
        predict=pipeline.stale_params,
        state=found["state"],
    )
    assert same_bits(rest[-1], wanted[-1])


def test_it_stays_in_optax_under_jit_scan_and_vmap():
    optimiser = optax.chain(
        optax.clip_by_global_norm(1.0),
        pipeline.stale(networks.adam(0.05), 2),
        optax.add_decayed_weights(0.0),
    )
    assert isinstance(optimiser, optax.GradientTransformation)
    loss = lambda w: jnp.sum((w - 3.0) ** 2)  # noqa: E731

    def train(w):
        def step(carry, _):
            w, state = carry
            updates, state = optimiser.update(jax.grad(loss)(w), state, w)
            return (optax.apply_updates(w, updates), state), w

        return jax.lax.scan(step, (w, optimiser.init(w)), length=40)[1]

    starts = jnp.array([[0.0, 1.0], [2.0, -1.0]])
    together = jax.jit(jax.vmap(train))(starts)
    for k in range(2):
        np.testing.assert_allclose(together[k], jax.jit(train)(starts[k]), atol=1e-6)
        np.testing.assert_array_equal(together[k, :3], jnp.tile(starts[k], (3, 1)))


def test_bfloat16_gradients_wait_in_bfloat16():
    params = {"w": jnp.ones((3,), jnp.bfloat16)}
    optimiser = pipeline.stale(networks.sgd(0.5), 2)
    state = optimiser.init(params)
    assert state.stages.queue.gradient["w"].dtype == jnp.bfloat16
    update = jax.jit(optimiser.update)
    for _ in range(3):
        updates, state = update(params, state, params)
    assert updates["w"].dtype == jnp.bfloat16 and float(updates["w"][0]) == -0.5


def test_extra_arguments_reach_the_optimiser():
    optimiser = pipeline.stale(optax.contrib.reduce_on_plateau(patience=2), 1)
    w = jnp.ones(2)
    state = optimiser.init(w)
    update = jax.jit(optimiser.update)
    for _ in range(3):
        updates, state = update(w, state, w, value=jnp.float32(1.0))
    assert updates.shape == (2,)


def test_updates_of_other_shapes_are_named():
    optimiser = pipeline.stale(networks.sgd(1.0), 2)
    state = optimiser.init(jnp.ones(2, jnp.float32))
    for other in (jnp.ones(3, jnp.float32), [jnp.ones(2, jnp.float32)]):
        with pytest.raises(ValueError, match=r"updates: got .*; float32\[2\], as the params that"):
            optimiser.update(other, state)


STAGES = {"early": {"w": jnp.ones(2)}, "late": {"w": jnp.ones(2)}}
LABELS = {"early": {"w": "slow"}, "late": {"w": "fast"}}


def test_labels_of_all_parameters_go_around():
    """What the error of labels within says is to be done."""
    around = optax.multi_transform(
        {
            "slow": pipeline.stale(networks.sgd(1.0), 2),
            "fast": pipeline.stale(networks.sgd(1.0), 0),
        },
        LABELS,
    )
    within = pipeline.stale(networks.sgd(1.0), {"early": 2, "late": 0})
    states = [around.init(STAGES), within.init(STAGES)]
    both = [jax.jit(around.update), jax.jit(within.update)]
    for n in range(4):
        gradient = jax.tree.map(lambda w: n + np.asarray(w), STAGES)
        made = [update(gradient, state, STAGES) for update, state in zip(both, states, strict=True)]
        states = [state for _, state in made]
        jax.tree.map(np.testing.assert_array_equal, made[0][0], made[1][0])


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: pipeline.stale(3, 1), TypeError, "optimiser: got 3"),
        (lambda: pipeline.stale(networks.sgd(1.0), -1), ValueError, "delays: got -1"),
        (lambda: pipeline.stale(networks.sgd(1.0), None), TypeError, "delays: got None; an int of"),
        (
            lambda: pipeline.stale(networks.sgd(1.0), {"a": 1.5}),
            TypeError,
            r"delays\['a'\]: got 1.5",
        ),
        (
            lambda: pipeline.stale(networks.sgd(1.0), 1, remedies=["haste"]),
            TypeError,
            "remedies: got 'haste'",
        ),
        (
            lambda: pipeline.stale(networks.sgd(1.0), [1, 0]).init([jnp.ones(1)] * 3),
            ValueError,
            "delays: got .*no prefix of params",
        ),
        (
            lambda: pipeline.stale(
                optax.chain(optax.clip_by_global_norm(1.0), networks.sgd(1.0)), [1, 0]
            ).init([jnp.ones(1)] * 2),
            NotImplementedError,
            "global norm",
        ),
        (
            lambda: pipeline.stale(
                optax.multi_transform({"slow": optax.sgd(0.1), "fast": optax.adam(0.1)}, LABELS),
                {"early": 2, "late": 0},
            ).init(STAGES),
            ValueError,
            r"optimiser: it does not take .*float..\[2\].*delays\['early'\].*Labels or a",
        ),
        (
            lambda: pipeline.stale(
                optax.masked(optax.sgd(0.1), {"early": {"w": True}, "late": {"w": False}}),
                {"early": 2, "late": 0},
            ).init(STAGES),
            ValueError,
            r"optimiser: it does not take .*delays\['early'\].*Labels or a mask for all params go",
        ),
    ],
)
def test_mistakes(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_stages_stand_where_the_delays_do():
    state = pipeline.stale(networks.sgd(0.1), {"a": 1, "b": [0, 2]}).init(
        {"a": {"w": jnp.ones(2)}, "b": [jnp.ones(1), {"v": jnp.ones(3)}]}
    )
    assert isinstance(state.stages["b"][1], Stage)
    assert state.stages["b"][1].queue.gradient["v"].shape == (2, 3)
