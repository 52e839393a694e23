"""Magnitude pruning: exact counts, the least magnitudes, masks kept through retraining."""

import dataclasses

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings

from parscan_bp.layers import Conv, Flatten, Linear, ReLU, activations, adjoint_operators, init
from parscan_bp.operators import Sparse, to_structure
from parscan_bp.pruning import apply_masks, keep_masks, magnitude_masks
from parscan_bp.sparsity import Pattern

sparsities = st.floats(0, 1)
# Few different magnitudes: many ties.
weights = st.lists(st.integers(-3, 3), min_size=4, max_size=40)


def tree(numbers):
    """A pytree of two kernels and a bias."""
    numbers = np.asarray(numbers, np.float32)
    half = len(numbers) // 2
    return {"a": {"kernel": numbers[:half, None], "bias": numbers[:2]}, "b": [numbers[half:, None]]}


@settings(deadline=None, max_examples=100)
@given(weights, sparsities)
def test_all_leaves_together_lose_exactly_that_many(numbers, sparsity):
    params = tree(numbers)
    masks = magnitude_masks(params, sparsity)
    assert jax.tree.structure(masks) == jax.tree.structure(params)
    kernels = [(params["a"]["kernel"], masks["a"]["kernel"]), (params["b"][0], masks["b"][0])]
    dropped = np.concatenate([np.abs(p[~m]) for p, m in kernels])
    kept = np.concatenate([np.abs(p[m]) for p, m in kernels])
    assert dropped.size == round(sparsity * len(numbers))
    assert dropped.max(initial=0) <= kept.min(initial=np.inf)
    assert masks["a"]["bias"].all()


@settings(deadline=None, max_examples=100)
@given(weights, sparsities)
def test_every_leaf_loses_exactly_that_many(numbers, sparsity):
    params = tree(numbers)
    masks = magnitude_masks(params, sparsity, scope="leaf")
    for p, m in ((params["a"]["kernel"], masks["a"]["kernel"]), (params["b"][0], masks["b"][0])):
        assert m.shape == p.shape and (~m).sum() == round(sparsity * p.size)
        assert np.abs(p[~m]).max(initial=0) <= np.abs(p[m]).min(initial=np.inf)


@settings(deadline=None, max_examples=15)
@given(weights, sparsities, st.integers(0, 2**31 - 1))
def test_adam_with_weight_decay_keeps_the_masks(numbers, sparsity, seed):
    # The weights are not pruned first: the first step does it.
    params = tree(numbers)
    masks = magnitude_masks(params, sparsity)
    rng = np.random.default_rng(seed)
    plain = optax.adamw(0.1, weight_decay=0.2)
    masked = keep_masks(plain, masks)
    ours, theirs = (params, masked.init(params)), (apply_masks(params, masks), plain.init(params))
    for _ in range(3):
        grads = jax.tree.map(lambda p: rng.standard_normal(p.shape).astype(p.dtype), params)
        ours, theirs = (
            _step(optimiser, grads, *pair) for optimiser, pair in ((masked, ours), (plain, theirs))
        )
        for p, m, free in zip(*map(jax.tree.leaves, (ours[0], masks, theirs[0])), strict=True):
            assert (np.asarray(p)[~m] == 0).all()
            np.testing.assert_array_equal(np.asarray(p)[m], np.asarray(free)[m])


def _step(optimiser, grads, params, state):
    updates, state = optimiser.update(grads, state, params)
    return optax.apply_updates(params, updates), state


def test_which_leaves_are_pruned_is_the_callers_choice():
    params = tree(range(1, 9))
    only_b = lambda path, leaf: path[0].key == "b"  # noqa: E731
    masks = magnitude_masks(params, 0.5, prunable=only_b)
    assert masks["a"]["kernel"].all() and masks["b"][0].ravel().tolist() == [False] * 2 + [True] * 2


def test_a_pruned_net_has_pruned_jacobians_of_a_static_pattern():
    layers = (Conv(4, (3, 3)), ReLU(), Flatten(), Linear(5))
    params = init(layers, jax.random.key(0), (4, 4, 2), jnp.float32)
    masks = magnitude_masks(params, 0.9)
    pruned = apply_masks(params, masks)
    xs = activations(
        layers, pruned, jax.random.normal(jax.random.key(1), (1, 4, 4, 2), jnp.float32)
    )
    operators = adjoint_operators(layers, pruned, xs)
    conv, kernel = masks[0]["kernel"], pruned[3]["kernel"]
    pattern = Pattern.from_mask(conv.reshape(-1, conv.shape[-1]))
    linear = masks[3]["kernel"]
    for whole, got in (
        (operators[0], to_structure(dataclasses.replace(operators[0], mask=pattern), Sparse)),
        (operators[3], Sparse(kernel[linear], Pattern.from_mask(linear))),
    ):
        dense = np.asarray(whole.as_dense())
        np.testing.assert_array_equal(got.as_dense(), dense)
        assert 0 < got.pattern.nnz == np.count_nonzero(dense) < 0.2 * dense.size


@pytest.mark.parametrize("sparsity", [-0.01, 1.01, float("nan")])
def test_a_sparsity_outside_of_0_to_1_is_refused(sparsity):
    with pytest.raises(ValueError, match="sparsity: got"):
        magnitude_masks(tree(range(4)), sparsity)


def test_mistakes():
    params = tree(range(4))
    with pytest.raises(ValueError, match="scope: got 'layer'; one of global, leaf"):
        magnitude_masks(params, 0.5, scope="layer")
    with pytest.raises(ValueError, match="params: no leaf is prunable"):
        magnitude_masks(params, 0.5, prunable=lambda path, leaf: False)
    with pytest.raises(ValueError, match=r"params\['a'\]\['kernel'\]: has a NaN"):
        magnitude_masks(tree([float("nan"), 1, 2, 3]), 0.5)
    with pytest.raises(TypeError, match="got a traced array"):
        jax.jit(lambda p: magnitude_masks(p, 0.5))(params)
    masks = magnitude_masks(params, 0.5)
    with pytest.raises(ValueError, match="params: got a pytree"):
        apply_masks(params["a"], masks)
    with pytest.raises(ValueError, match=r"params.*: got shape \(3, 1\); its mask has \(2, 1"):
        keep_masks(optax.sgd(0.1), masks).init(tree(range(6)))
    with pytest.raises(ValueError, match="params: got None"):
        keep_masks(optax.sgd(0.1), masks).update(params, optax.EmptyState())


ONES = {"k": jnp.ones((2, 2))}
MASKS = {"k": np.eye(2, dtype=bool)}
MISTAKES = {
    "swapped": (
        lambda: apply_masks(MASKS, ONES),
        r"masks\['k'\]: got .*float.*; an array of bools",
    ),
    "numbers": (lambda: apply_masks(ONES, ONES), r"masks\['k'\]: got .*float.*; an array of bools"),
    "masks first": (lambda: keep_masks(MASKS, optax.sgd(0.1)), "optimiser: got .*an optax.Grad"),
    "no masks": (lambda: keep_masks(optax.sgd(0.1), ONES), r"masks\['k'\]: got .*bools is wanted"),
    "part": (lambda: magnitude_masks(ONES, "half"), "sparsity: got 'half', of type str; a part in"),
    "no part": (lambda: magnitude_masks(ONES, None), "sparsity: got None; a part in"),
    "prunable": (lambda: magnitude_masks(ONES, 0.5, prunable="k"), "prunable: got 'k'.*a function"),
    "names": (
        lambda: magnitude_masks({"k": np.array([["a"]])}, 0.5),
        r"params\['k'\]: got an array of <U1; an array of numbers is wanted",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_what_is_no_such_argument_is_named(name):
    call, message = MISTAKES[name]
    with pytest.raises(TypeError, match=message):
        call()


def test_complex_weights_have_their_magnitudes():
    masks = magnitude_masks({"k": np.array([[3j, 1.0], [2.0 + 2j, 0.5j]])}, 0.5)
    np.testing.assert_array_equal(masks["k"], [[True, False], [True, False]])


def test_what_the_optimiser_takes_beside_is_handed_on():
    scaled = optax.GradientTransformationExtraArgs(
        lambda params: None,
        lambda updates, state, params=None, *, by: (jax.tree.map(lambda u: by * u, updates), state),
    )
    optimiser = keep_masks(scaled, MASKS)
    updates, _ = optimiser.update(ONES, optimiser.init(ONES), ONES, by=3.0)
    np.testing.assert_array_equal(updates["k"], [[3.0, -1.0], [-1.0, 3.0]])
