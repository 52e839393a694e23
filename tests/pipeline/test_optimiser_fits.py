"""What an optimiser wants or makes that a pipeline does not have is named."""

import jax
import jax.numpy as jnp
import optax
import pytest
from alike import line
from networks import cross_entropy, data, net

from parscan_bp import pipeline

LBFGS = r"optimiser: its update wants 'value', 'grad', and 'value_fn' beside gradient"
PAIRS = optax.GradientTransformation
REFUSED = {
    "line search": (optax.lbfgs(), TypeError, LBFGS),
    "value": (
        optax.contrib.reduce_on_plateau(),
        TypeError,
        "optimiser: its update wants 'value' beside gradient",
    ),
    "labels": (
        optax.multi_transform({"a": optax.sgd(0.1)}, [{"kernel": "a", "bias": "b"}] * 3),
        ValueError,
        "optimiser: it does not take the params of block 0, ",
    ),
    "shapes": (
        PAIRS(lambda params: (), lambda g, state, params=None: (jax.tree.leaves(g), state)),
        ValueError,
        r"optimiser: of the params of block 0, .* its update makes .*; the same structure",
    ),
}


def _square(w, x):
    return x @ w


EXECUTORS = {
    "Simulated": lambda blocks, params, **how: pipeline.run(blocks, params=params, **how),
    "Threads": lambda blocks, params, **how: pipeline.run(
        blocks, params=params, **how, executor=pipeline.Threads()
    ),
    "Processes": lambda blocks, params, **how: pipeline.run(
        blocks, params=params, **how, executor=pipeline.Processes()
    ),
    "Pipeline": lambda blocks, params, batches, **how: pipeline.Pipeline(
        blocks, params, split=(1,) * len(blocks), **how
    ).fit(batches),
}


@pytest.mark.parametrize("why", REFUSED)
@pytest.mark.parametrize("name", EXECUTORS)
def test_it_is_refused_before_anything_runs(name, why):
    optimiser, kind, words = REFUSED[why]
    blocks, params = net(3)
    how = {"schedule": pipeline.BackPropagation(), "loss": cross_entropy, "batches": data(3)}
    with pytest.raises(kind, match=words):
        EXECUTORS[name](blocks, params, optimiser=optimiser, **how)


@pytest.mark.parametrize("why", ["line search", "value", "shapes"])
def test_spmd_refuses_it_too(why):
    optimiser, kind, words = REFUSED[why]
    how = {"schedule": pipeline.GPipe(2), "loss": cross_entropy, "batches": data(3)}
    with pytest.raises(kind, match=words):
        pipeline.run(
            [_square],
            optimiser=optimiser,
            params=[jnp.eye(4)],
            **how,
            executor=pipeline.Spmd(mesh=line(1)),
        )


def test_a_state_of_another_block_is_named():
    blocks, params = net(3)
    optimiser = optax.adam(0.1)
    states = [optimiser.init(own) for own in params[::-1]]
    with pytest.raises(ValueError, match=r"the params and optimiser_states\[0\] of block 0"):
        pipeline.run(
            blocks,
            pipeline.BackPropagation(),
            optimiser,
            cross_entropy,
            params,
            data(3),
            optimiser_states=states,
        )


def test_stale_hands_on_what_else_an_update_wants():
    params = {"a": jnp.ones(2), "b": jnp.ones(3)}
    optimiser = pipeline.stale(optax.lbfgs(), {"a": 1, "b": 0})
    wanted = LBFGS.removesuffix("gradient") + "gradients, state and params; .* hands them on"
    with pytest.raises(TypeError, match=wanted):
        optimiser.update(params, optimiser.init(params), params)
    plain = optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau(patience=1, factor=0.5))
    ours, state = pipeline.stale(plain, 0), pipeline.stale(plain, 0).init(params)
    made, theirs = [], plain.init(params)
    late_update, plain_update = jax.jit(ours.update), jax.jit(plain.update)
    for _ in range(4):
        update, state = late_update(params, state, params, value=1.0)
        wanted, theirs = plain_update(params, theirs, params, value=1.0)
        made.append(float(update["a"][0]))
        assert made[-1] == float(wanted["a"][0])
    assert made[-1] != made[0]


def test_stale_names_remedies_and_states_that_are_none():
    with pytest.raises(TypeError, match=r"remedies: got ErrorFeedback.*; a sequence of them"):
        pipeline.stale(optax.sgd(0.1), 1, remedies=pipeline.ErrorFeedback())
    optimiser, w = pipeline.stale(optax.sgd(0.1), 1), jnp.ones(2)
    with pytest.raises(TypeError, match=r"state: got .*; that of this optimiser's init is wanted"):
        optimiser.update(w, optax.sgd(0.1).init(w), w)
