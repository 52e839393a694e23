"""Products of implicit convolutions: the structure that they become, and their numbers."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from parscan_bp.operators import (
    ChannelDense,
    Convolution,
    Dense,
    Diagonal,
    Operator,
    Selection,
    Sparse,
    compose,
    compose_cost,
    compose_shape,
    to_structure,
)
from parscan_bp.sparsity import Pattern
from tests.family import array, jit_once, together

POSITIONS, CHANNELS = 12, 2
SIZE = POSITIONS * CHANNELS
# The kernel of window 3 with two input and two output channels, (3 * 2, 2).
KEPT = Pattern.from_coordinates([0, 2, 3, 5], [1, 0, 1, 1], (6, 2))


def numbers(seed, *shape):
    """Small integers: their products are exact."""
    return array(np.random.default_rng(seed).integers(-2, 3, shape), "float32")


def convolution(seed, mask=None, groups=1, **options):
    kernel = numbers(seed, 3, CHANNELS // groups, CHANNELS)
    if mask is not None:
        kernel = array(np.asarray(kernel) * mask.as_mask().reshape(kernel.shape))
    return Convolution(kernel, (POSITIONS,), padding=((1, 1),), groups=groups, mask=mask, **options)


def windows() -> Pattern:
    mask = np.eye(POSITIONS, dtype=bool) | np.eye(POSITIONS, k=-1, dtype=bool)
    return Pattern.from_mask(mask)


def selection() -> Operator:
    source = np.minimum(np.arange(POSITIONS)[:, None] + [0, 1], POSITIONS - 1)
    return Selection(array(source, jnp.int32), numbers(1, POSITIONS, CHANNELS), windows())


CONVOLUTIONS = {
    "plain": convolution(2),
    "transposed": convolution(3).transpose(),
    "grouped": convolution(4, groups=2).transpose(),
    "pruned": convolution(5, KEPT).transpose(),
    "pruned-forward": convolution(6, KEPT),
    "stacked": Convolution(
        numbers(7, 3, 3, CHANNELS, CHANNELS), (POSITIONS,), padding=((1, 1),)
    ).transpose(),
}
OTHERS = {
    "diagonal": Diagonal(numbers(10, 3, SIZE)),
    "selection": selection(),
    "blocks": ChannelDense(numbers(11, windows().nnz, CHANNELS, CHANNELS), windows()),
    "sparse": Sparse(numbers(12, SIZE), Pattern.diagonal(SIZE)),
    "dense": Dense(numbers(13, SIZE, SIZE)),
    **CONVOLUTIONS,
}
PAIRS = [
    pair for pair in itertools.product(OTHERS, OTHERS) if any(name in CONVOLUTIONS for name in pair)
]


@pytest.fixture(scope="module")
def products():
    """Every pair, and the matrices of the products and of the operands, in one program."""

    def everything(ops):
        made = {(a, b): compose(ops[a], ops[b]) for a, b in PAIRS}
        return made, *({name: op.as_dense() for name, op in each.items()} for each in (made, ops))

    made, *matrices = jit_once(everything)(OTHERS)
    return made, *jax.tree.map(np.asarray, matrices)


@pytest.mark.sampled
@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_products_are_those_of_the_matrices(products, a, b):
    made, matrices, dense = products
    got = made[a, b]
    np.testing.assert_array_equal(matrices[a, b], dense[b] @ dense[a])
    want = compose_shape(OTHERS[a], OTHERS[b])
    assert jax.tree.structure(got) == jax.tree.structure(want)
    assert compose_cost(OTHERS[a], OTHERS[b]).flops > 0


def test_structures_of_products(products):
    made, *_ = products
    for other in ("diagonal", "selection", "blocks", "transposed"):
        assert type(made["transposed", other]) is ChannelDense
    for other in ("diagonal", "selection", "sparse"):
        assert type(made["pruned", other]) is Sparse
    assert type(made["dense", "plain"]) is Dense


def both_ways(op):
    """As a matrix, and the matrices of what it is converted to."""
    return op.as_dense(), [to_structure(op, kind).as_dense() for kind in (ChannelDense, Sparse)]


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_conversions_hold_the_same_matrix(name, request):
    want, converted = together(request, lambda name: (both_ways, [CONVOLUTIONS[name]]))
    for got in converted:
        np.testing.assert_array_equal(got, want)


def test_a_pruned_kernel_gives_its_own_entries_only():
    assert to_structure(CONVOLUTIONS["pruned"], Sparse).pattern.nnz == 11 + 2 * 12 + 11


def test_geometries_with_strides_dilation_and_pruning():
    mask = Pattern.from_coordinates([0, 3, 5, 7, 9], [1, 0, 2, 3, 1], (3 * 2 * 2, 4))
    kernel = array(np.asarray(numbers(0, 3, 2, 2, 4)) * mask.as_mask().reshape(3, 2, 2, 4))
    op = Convolution(
        kernel, (5, 4), (2, 1), ((1, 0), (0, 2)), (1, 2), groups=2, mask=mask
    ).transpose()
    want, converted = jit_once(both_ways)(op)
    for got in converted:
        np.testing.assert_array_equal(got, want)


def test_a_full_product_of_blocks_is_dense():
    wide = Convolution(numbers(0, 5, 1, 1), (4,), padding=((2, 2),))
    assert type(jit_once(compose)(wide, wide)) is Dense


def test_a_mask_of_another_shape_is_refused():
    short = Pattern.from_coordinates([0], [0], (4, 2))
    op = Convolution(numbers(0, 3, 2, 2), (POSITIONS,), mask=short)
    with pytest.raises(ValueError, match=r"mask: got shape \(4, 2\); that of the kernel, \(6, 2\)"):
        op.transpose().matvec(np.ones(SIZE, np.float32))
