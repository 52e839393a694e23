"""The simulator against a slow oracle, plain gradients, and the memory that schedules state."""

import functools
import itertools

import jax
import jax.numpy as jnp
import networks
import numpy as np
import optax
import pytest
from networks import cross_entropy, data, net, placed, run, same_bits, whole, widths
from schedule_cases import CASES, PAPER, SYNCHRONOUS

from parscan_bp import pipeline

EACH = pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
MORE = 6
"""Batches beside those on the way."""


@functools.partial(jax.jit, static_argnums=0)
def _pull(block, weights, h, ct):
    return jax.vjp(block, weights, h)[1](ct)


@functools.partial(jax.jit, static_argnums=0)
def _pull_loss(block, weights, h, labels):
    return jax.grad(lambda w, h: cross_entropy(block(w, h), labels), (0, 1))(weights, h)


def _oracle(case, log, batch, number):
    """The gradients of one batch, from the history of weights and the closed form of the ages."""
    blocks, _ = net(case.blocks)
    parts = case.schedule.parts
    totals = [None] * case.blocks
    size = len(batch[1]) // parts
    for part in range(parts):
        rows = slice(part * size, (part + 1) * size)
        h, labels = batch[0][rows], batch[1][rows]
        inputs = []
        for k, block in enumerate(blocks):
            inputs.append(h)
            h = jax.jit(block)(log.weights[k][case.forward(k, number)], h)
        ct = None
        for k in reversed(range(case.blocks)):
            weights = log.weights[k][case.backward(k, number)]
            last = k == case.blocks - 1
            own, ct = (
                _pull_loss(blocks[k], weights, inputs[k], labels)
                if last
                else _pull(blocks[k], weights, inputs[k], ct)
            )
            totals[k] = own if part == 0 else jax.tree.map(jnp.add, totals[k], own)
    return [jax.tree.map(lambda g: g / parts, total) for total in totals]


@EACH
def test_every_gradient_is_the_oracles_to_the_last_bit(case):
    batches = data(case.schedule.on_the_way(case.blocks) + MORE)
    _, log = run(case.schedule, case.blocks, len(batches))
    assert len(log.gradients) == case.blocks * len(batches)
    for number, batch in enumerate(batches):
        wanted = _oracle(case, log, batch, number)
        for k in range(case.blocks):
            assert same_bits(log.gradients[k, number], wanted[k]), (number, k)


@pytest.mark.parametrize("name", ["DSP(2,0,1,0;7,4,3,0)", "GPipe", "PipeDream2BW"])
def test_every_update_is_the_optimisers(name):
    case, optimiser = CASES[name], networks.adam(0.01)
    made, log = run(case.schedule, case.blocks, 20, optimiser)
    step = jax.jit(optimiser.update)
    for k, weights in enumerate(log.weights):
        state = placed(optimiser.init(weights[0]))
        for number in range(20):
            updates, state = step(log.gradients[k, number], state, weights[number])
            moved = optax.apply_updates(weights[number], updates)
            assert networks.largest_difference(moved, weights[number + 1]) < 1e-6
        assert same_bits(made.params[k], weights[-1])


def _plain(optimiser, steps, dtype=jnp.float32, blocks=3):
    """`jax.grad` of the whole model and one optimiser of all parameters."""
    functions, params = net(blocks, dtype=dtype)
    loss, state, losses = whole(functions), placed(optimiser.init(params)), []

    @jax.jit
    def step(params, state, batch):
        value, gradient = jax.value_and_grad(loss)(params, batch)
        updates, state = optimiser.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    for batch in data(steps, dtype=dtype):
        params, state, value = step(params, state, batch)
        losses.append(value)
    return params, jnp.stack(losses)


@pytest.mark.parametrize("optimiser", [networks.sgd(0.1, momentum=0.9), optax.adamw(1e-2)])
def test_without_delays_it_is_jax_grad_after_50_steps(optimiser):
    wanted, losses = _plain(optimiser, 50)
    plain, _ = run(pipeline.BackPropagation(), batches=50, optimiser=optimiser)
    zero, _ = run(pipeline.DSP((0, 0, 0), (0, 0, 0)), batches=50, optimiser=optimiser)
    assert networks.largest_difference(plain.params, wanted) < 1e-6
    np.testing.assert_allclose(plain.losses, losses, atol=1e-6)
    assert same_bits(plain, zero)


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_flushed_schedules_equal_sequential_gradients_in_double_precision(name):
    with jax.enable_x64(True):
        optimiser = networks.sgd(0.1, momentum=0.9)
        wanted, _ = _plain(optimiser, 8, jnp.float64, blocks=2)
        made, _ = run(CASES[name].schedule, 2, 8, optimiser, jnp.float64)
        assert networks.largest_difference(made.params, wanted) < 1e-10


def test_delayed_gradients_move_the_weights_as_pipedream_does():
    delayed, _ = run(pipeline.DelayedGradients(), batches=25)
    stashed, _ = run(pipeline.PipeDream(), batches=25)
    assert same_bits(delayed.params, stashed.params) and same_bits(delayed.losses, stashed.losses)


def _live(shape):
    return sum(array.shape == shape for array in jax.live_arrays())


@pytest.mark.parametrize("name", PAPER)
def test_between_ticks_the_queues_hold_p_m_and_q_arrays(name):
    """Each place has a shape of its own: arrays that are alive are counted, not what is claimed."""
    schedule = PAPER[name]
    blocks = len(schedule.p)
    functions, params = net(blocks)
    batches = data(schedule.on_the_way(blocks) + 12)
    sizes = widths(blocks)
    full = range(schedule.m[0] + 1, len(batches) - 1)
    counted = {}
    shapes = [(networks.ROWS, sizes[k]) for k in range(blocks)]
    shapes += list(itertools.pairwise(sizes))
    before = {shape: _live(shape) for shape in shapes}

    def observe(task, pipe):
        if task.kind != "update" or task.block != 0 or task.batch + schedule.m[0] not in full:
            return
        for shape in shapes:
            counted.setdefault(shape, set()).add(_live(shape) - before[shape])

    optimiser = networks.sgd(0.01, momentum=0.9)
    pipeline.run(
        functions,
        schedule,
        optimiser,
        cross_entropy,
        params,
        batches,
        executor=pipeline.Simulated(observe=observe),
    )
    for k in range(1, blocks):
        queues = schedule.p[k - 1] + schedule.m[k] + schedule.queues[k]
        assert counted[networks.ROWS, sizes[k]] == {queues}, (k, queues)
        assert counted[sizes[k], sizes[k + 1]] == {2}, "weights and momentum"


@pytest.mark.parametrize(
    "name", ["GPipe", "OneFOneB", "PipeDream", "PipeDream2BW", "FeaturesReplay", "ZeroBubble"]
)
def test_the_most_that_is_held_is_what_the_table_says(name):
    case = CASES[name]
    blocks = case.blocks
    functions, params = net(blocks)
    most = {}
    kernels = list(itertools.pairwise(widths(blocks)))
    before = [_live(shape) for shape in kernels]

    def observe(task, pipe):
        for k in range(blocks):
            now = {
                "inputs": sum(where[0] == k for where in pipe.inputs),
                "linearisations": sum(where[0] == k for where in pipe.linearisations),
                "weights": len(pipe.weights[k]),
            }
            if k < blocks - 1:
                now["outputs"] = sum(where[0] == k for where in pipe.outputs)
            for what, count in now.items():
                most[k, what] = max(most.get((k, what), 0), count)
            alive = _live(kernels[k]) - before[k]
            most[k, "kernels"] = max(most.get((k, "kernels"), 0), alive)

    pipeline.run(
        functions,
        case.schedule,
        networks.sgd(0.01),
        cross_entropy,
        params,
        data(12),
        executor=pipeline.Simulated(observe=observe),
    )
    for k, held in enumerate(case.schedule.held(blocks)):
        for what in ("inputs", "linearisations", "weights", "outputs"):
            if (k, what) in most:
                assert most[k, what] == getattr(held, what), (k, what)
        # One gradient beside them, and a copy in every linearisation; version 0 is the caller's.
        at_least, extra = held.weights, 1 + held.linearisations
        assert at_least <= most[k, "kernels"] <= at_least + extra, k


def test_dropout_is_replayed_with_the_key_of_its_own_forward_pass():
    """A block whose output tells its mask, and whose gradient tells the mask of the replay."""

    def noisy(params, state, x, key):
        mask = jax.random.bernoulli(key, 0.5, x.shape[1:]).astype(x.dtype)
        return x + params * mask, {"mask": mask, "passes": state["passes"] + 1}

    masks, gradients = {}, {}

    def observe(task, pipe):
        if task.kind == "forward" and task.block == 0:
            masks[task.batch] = pipe.states[0]["mask"]
        if task.kind == "update" and task.block == 0:
            gradients[task.batch] = pipe.gradient

    state = placed({"mask": jnp.zeros(4, jnp.float32), "passes": jnp.zeros((), jnp.int32)})
    made = pipeline.run(
        [pipeline.Block(noisy), lambda w, x: x * w, lambda w, x: x * w],
        PAPER["DSP(2,2,0;6,3,0)"],
        networks.sgd(0.0),
        lambda y, labels: y.sum(),
        placed([jnp.ones(4), jnp.ones(()), jnp.ones(())]),
        data(20),
        states=[state, (), ()],
        key=placed(jax.random.key(3)),
        executor=pipeline.Simulated(observe=observe),
    )
    assert len({tuple(np.asarray(mask)) for mask in masks.values()}) > 5
    for number, gradient in gradients.items():
        np.testing.assert_array_equal(gradient, networks.ROWS * masks[number])
    assert int(made.states[0]["passes"]) == 20, "a replay moved the state"


def _normalised(params, state, x, key):
    """A batch norm without scale, its statistics moved by a tenth."""
    mean, var = x.mean(0), x.var(0)
    moved = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, state["stats"], (mean, var))
    return params * (x - mean) / jnp.sqrt(var + 1e-5), {"stats": moved, "count": state["count"] + 1}


@pytest.mark.parametrize("schedule", [PAPER["DSP(1,1,0;4,2,0)"], pipeline.GPipe(4)])
def test_statistics_move_once_a_batch(schedule):
    state = placed({"stats": (jnp.zeros(4), jnp.ones(4)), "count": jnp.zeros((), jnp.int32)})
    batches = data(10)
    made = pipeline.run(
        [pipeline.Block(_normalised), lambda w, x: w * x, lambda w, x: w * x],
        schedule,
        networks.sgd(0.1),
        lambda y, labels: jnp.mean(y**2),
        placed([jnp.ones(4), jnp.ones(()), jnp.ones(())]),
        batches,
        states=[state, (), ()],
    )
    mean, var = np.zeros(4), np.ones(4)
    for x, _ in batches:
        parts = np.asarray(x).reshape(schedule.parts, -1, 4)
        mean = 0.9 * mean + 0.1 * parts.mean(1).mean(0)
        var = 0.9 * var + 0.1 * parts.var(1).mean(0)
    np.testing.assert_allclose(made.states[0]["stats"][0], mean, rtol=1e-5)
    np.testing.assert_allclose(made.states[0]["stats"][1], var, rtol=1e-5)
    assert int(made.states[0]["count"]) == 10 * schedule.parts


def test_a_run_goes_on_where_another_one_ended():
    functions, params = net(3)
    batches, optimiser = data(16), networks.adam(0.01)
    go = functools.partial(
        pipeline.run, functions, pipeline.BackPropagation(), optimiser, cross_entropy
    )
    first = go(params, batches[:6])
    second = go(first.params, batches[6:], optimiser_states=first.optimiser_states)
    assert same_bits(second.params, go(params, batches).params)


def test_batches_may_be_made_on_demand_and_inputs_may_be_integers():
    asked = []

    class Tokens:
        def __len__(self):
            return 9

        def __getitem__(self, number):
            asked.append(number)
            rng = np.random.default_rng(number)
            return jnp.asarray(rng.integers(5, size=(8,))), jnp.asarray(rng.integers(3, size=8))

    embed = lambda table, tokens: table[tokens]  # noqa: E731
    rng = np.random.default_rng(0)
    params = [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((5, 4), (4, 3))]
    made = pipeline.run(
        [embed, lambda w, x: x @ w],
        pipeline.DSP((1, 0), (2, 0)),
        networks.sgd(0.1),
        cross_entropy,
        params,
        Tokens(),
    )
    assert asked == list(range(9)) and bool(jnp.isfinite(made.losses).all())


def test_the_loss_falls_at_a_small_rate_whatever_the_schedule():
    batches = data(3, rows=8) * 40
    functions, params = net(4)
    for schedule in (PAPER["DSP(3,3,3,0;15,10,5,0)"], pipeline.PipeDream()):
        made = pipeline.run(functions, schedule, networks.sgd(0.05), cross_entropy, params, batches)
        assert made.losses[-10:].mean() < 0.85 * made.losses[:3].mean()


def test_an_optimiser_with_labels_is_each_blocks_own():
    labels = {"slope": "trained", "offset": "kept"}
    optimiser = optax.multi_transform(
        {"trained": networks.sgd(0.1), "kept": optax.set_to_zero()}, labels
    )
    block = lambda w, x: x * w["slope"] + w["offset"]  # noqa: E731
    params = placed({"slope": np.float32(0.5), "offset": np.float32(1)})
    batches = [(jnp.ones(4), jnp.zeros(4))] * 3
    loss = lambda y, labels: jnp.mean((y - labels) ** 2)  # noqa: E731
    how = (pipeline.PipeDream(), optimiser, loss, [params] * 2, batches)
    made = pipeline.run([block] * 2, *how)
    for own in made.params:
        assert own["offset"] == 1 and own["slope"] != 0.5
