"""Powers, sliding windows and product trees against products one after the other."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bench.paper.product_tree import ProductTree
from bench.paper.products import power, sliding_products
from parscan_bp.operators import (
    Banded,
    BlockDiagonal,
    Dense,
    Diagonal,
    Identity,
    Scaled,
)
from tests.operators.operator_examples import Draw, assert_close
from tests.operators.operator_references import wide

FEATURES = 4
STRUCTURES = {
    "dense": lambda draw, stack: Dense(draw(*stack, 4, 4) / 2),
    "diagonal": lambda draw, stack: Diagonal(draw(*stack, 4)),
    "blocks": lambda draw, stack: BlockDiagonal(draw(*stack, 2, 2, 2)),
    "scaled": lambda draw, stack: Scaled.of(Dense(draw(*stack, 4, 4) / 2)),
}
CASES = [
    ("dense", 7, ()),
    ("dense", 8, (2,)),
    ("diagonal", 9, ()),
    ("blocks", 5, ()),
    ("scaled", 6, ()),
]


def make(name, *stack):
    return STRUCTURES[name](Draw(0, "float32"), stack)


def matrices(op):
    return wide(op.as_dense())


def product(factors):
    return functools.reduce(np.matmul, factors)


@pytest.mark.parametrize("exponent", [0, 1, 2, 7])
def test_power(exponent):
    op = make("dense", 2)
    got = jax.jit(power, static_argnums=1)(op, exponent)
    want = np.linalg.matrix_power(matrices(op), exponent)
    assert_close(np.broadcast_to(got.as_dense(), want.shape), want, jnp.float32, 16 * FEATURES)
    assert (exponent == 0) == isinstance(got, Identity)


def test_a_banded_power_fills_up_and_is_differentiable():
    bands = Draw(1, "float32")(3, 6) / 4

    def corner(bands):
        return power(Banded(bands, 1), 5).as_dense()

    def one_by_one(bands):
        return jnp.linalg.matrix_power(Banded(bands, 1).as_dense(), 5)

    assert_close(corner(bands), one_by_one(bands), jnp.float32, 30)
    got, want = (jax.jit(jax.jacrev(f))(bands) for f in (corner, one_by_one))
    assert_close(got, want, jnp.float32, 100)


def test_a_scaled_power_does_not_overflow():
    got = power(Scaled.of(Diagonal(jnp.full(2, 2.0**100))), 5)
    assert got.exponent.tolist() == [501, 501] and got.mantissa.diagonal.tolist() == [0.5, 0.5]


@pytest.mark.parametrize(("name", "length", "batch"), CASES, ids=str)
def test_sliding_products(name, length, batch):
    op = make(name, length, *batch)
    factors = matrices(op)
    for window in (1, 3, length):
        got = jax.jit(sliding_products, static_argnums=1)(op, window)
        starts = range(length - window + 1)
        want = np.stack([product(factors[k : k + window]) for k in starts])
        assert type(got) is type(op)
        assert_close(got.as_dense(), want, jnp.float32, FEATURES * window)


@pytest.mark.parametrize(("name", "length", "batch"), [*CASES, ("diagonal", 1, ())], ids=str)
def test_a_product_tree_follows_its_updates(name, length, batch):
    op = make(name, length, *batch)
    factors = matrices(op)
    tree = jax.jit(ProductTree.of)(op)
    assert len(tree.levels) == 1 + (length - 1).bit_length()
    assert_close(tree.product.as_dense(), product(factors), jnp.float32, FEATURES * length)
    new = make(name, *batch)
    update = jax.jit(ProductTree.update)
    for index in sorted({0, length // 2, length - 1}):
        tree = update(tree, index, new)
        factors[index] = matrices(new)
        assert_close(tree.product.as_dense(), product(factors), jnp.float32, FEATURES * length)
    rebuilt = jax.jit(ProductTree.of)(tree.levels[0])
    for got, want in zip(tree.levels, rebuilt.levels, strict=True):
        assert_close(got.as_dense(), matrices(want), jnp.float32, FEATURES * length)


def test_mistakes():
    dense = make("dense", 3)
    for exponent in (-1, 2.0, True):
        with pytest.raises(ValueError, match="exponent: got"):
            power(dense, exponent)
    with pytest.raises(ValueError, match="op: got 2x3 maps"):
        power(Dense(jnp.ones((2, 3))), 2)
    for window in (0, 4, 1.0):
        with pytest.raises(ValueError, match="window: got"):
            sliding_products(dense, window)
    with pytest.raises(TypeError, match="op: got Banded"):
        sliding_products(Banded(jnp.ones((3, 1, 4)), 0), 2)
    with pytest.raises(ValueError, match="op: every leaf is shared"):
        ProductTree.of(Dense(jnp.eye(2)))
    tree = ProductTree.of(dense)
    with pytest.raises(ValueError, match="index: got 3; the chain has 3 maps"):
        tree.update(3, Dense(jnp.eye(4)))
    with pytest.raises(ValueError, match="op: got Diagonal"):
        tree.update(0, Diagonal(jnp.ones(4)))
