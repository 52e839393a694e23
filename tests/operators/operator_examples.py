"""One row for each structure: how to make a random stack of it.

What matrices they stand for is in `operator_references`. Names of the form *_examples.py are data
for the tests beside them.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from parscan_bp.operators import (
    Banded,
    BlockDiagonal,
    BlockSparse,
    BlockTriangular,
    ChannelDense,
    ChannelSlice,
    Convolution,
    Dense,
    Diagonal,
    Factored,
    Identity,
    LowRankUpdate,
    MatrixFree,
    Operator,
    Product,
    Scaled,
    Selection,
    Sparse,
    Sum,
)
from parscan_bp.sparsity import Pattern
from tests.family import array
from tests.operators.operator_references import wide

X64 = jnp.result_type(float) == jnp.float64
DTYPES = ["float32", "bfloat16", "complex64", *(["float64", "complex128"] if X64 else [])]
LENGTH, BATCH = 5, 2
STACKS = [(), (LENGTH,), (LENGTH, BATCH)]


def tolerance(dtype, terms: int = 1) -> float:
    """Relative error of a few roundings and a sum of `terms` products."""
    return 4 * (terms + 4) ** 0.5 * float(jnp.finfo(dtype).eps)


def assert_close(got, want, dtype, terms: int = 1) -> None:
    """`got` within rounding of the double-precision `want`, relative to the largest entry."""
    want = np.asarray(want)
    scale = max(1.0, np.abs(want).max(initial=0.0))
    assert np.shape(got) == want.shape
    np.testing.assert_allclose(wide(got), want, rtol=0, atol=scale * tolerance(dtype, terms))


class Draw:
    """Random arrays of one dtype: normal entries, both parts of complex ones."""

    def __init__(self, seed: int, dtype: str):
        self.rng = np.random.default_rng(seed)
        self.dtype = jnp.dtype(dtype)

    def __call__(self, *shape: int) -> jax.Array:
        x = self.rng.standard_normal(shape)
        if jnp.issubdtype(self.dtype, jnp.complexfloating):
            x = x + 1j * self.rng.standard_normal(shape)
        return array(x, self.dtype)


class Integers(Draw):
    """Small integers as floats: products of a few matrices are exact, also in float32."""

    def __call__(self, *shape):
        return array(self.rng.integers(-2, 3, shape), self.dtype)


@dataclasses.dataclass(frozen=True)
class Example:
    """A row: `make(draw, stack)` gives an operator with these stack axes."""

    name: str
    make: Callable[[Draw, tuple[int, ...]], Operator]

    def __repr__(self) -> str:
        return self.name


def weight_after_slope(weight, slope, v):
    """W diag(slope) v: the linear function of the matrix-free row."""
    return jnp.matmul(weight, slope * v, precision="highest")


def make_matrix_free(draw, stack, rows=3, cols=4):
    """A weight that all maps share, a slope for each."""
    like = jax.ShapeDtypeStruct((cols,), draw.dtype)
    linear = Partial(weight_after_slope, draw(rows, cols), draw(cols))
    op = MatrixFree(linear, False, like)
    return op.map_leaves(lambda leaf, ndim: leaf if ndim == 2 else draw(*stack, cols))


def make_lstm(draw, stack):
    return Factored(draw(3, 12), draw(*stack, 4, 2, 3), draw(*stack, 2, 2, 3))


# Sparse enough that some products of two stay sparse, others fill up.
ENTRIES = Pattern.from_coordinates([0, 1, 2, 3, 4, 5, 5], [1, 2, 0, 3, 5, 4, 0], (6, 6))
POSITIONS = Pattern.from_coordinates([0, 1, 2, 2], [0, 2, 1, 2], (3, 3))
WINDOWS = Pattern.from_coordinates([0, 1, 1, 2, 2], [0, 0, 1, 1, 2], (3, 3))


def make_selection(draw, stack, transposed=False):
    """Each output selects the first or the last position of its window."""
    choose = draw.rng.integers(0, 2, (*stack, 3, 2))
    ends = np.array([[0, 1], [1, 2], [2, 2]])
    source = np.take_along_axis(np.broadcast_to(ends, (*stack, 3, 2)), choose, axis=-1)
    return Selection(array(source, jnp.int32), draw(*stack, 3, 2), WINDOWS, transposed)


# As one program: what costs time in these tests is compiling.
scale = jax.jit(Scaled.of)

# Square rows act on 6 features, so that any two of them compose.
SQUARE = [
    Example("dense", lambda draw, stack: Dense(draw(*stack, 6, 6))),
    Example("diagonal", lambda draw, stack: Diagonal(draw(*stack, 6))),
    Example("blocks-of-2", lambda draw, stack: BlockDiagonal(draw(*stack, 3, 2, 2))),
    Example("blocks-of-3", lambda draw, stack: BlockDiagonal(draw(*stack, 2, 3, 3))),
    Example("identity", lambda draw, stack: Identity(6, draw.dtype)),
    Example(
        "elman",
        lambda draw, stack: Factored.from_diagonal(draw(6, 6), draw(*stack, 6)),
    ),
    Example(
        "gru",
        lambda draw, stack: Factored(draw(6, 18), draw(*stack, 3, 1, 6), draw(*stack, 1, 1, 6)),
    ),
    Example("lstm", make_lstm),
    Example(
        "gates-without-direct",
        lambda draw, stack: Factored(draw(*stack, 2, 4), draw(*stack, 2, 3, 2)),
    ),
    Example(
        "product",
        lambda draw, stack: Product(
            (Dense(draw(6, 4)), Dense(draw(*stack, 4, 6)), Identity(6), Diagonal(draw(*stack, 6)))
        ),
    ),
    Example("scaled-dense", lambda draw, stack: scale(Dense(draw(*stack, 6, 6)))),
    Example("scaled-diagonal", lambda draw, stack: scale(Diagonal(draw(*stack, 6)))),
    Example(
        "scaled-blocks-of-2",
        lambda draw, stack: scale(BlockDiagonal(draw(*stack, 3, 2, 2))),
    ),
    Example("sparse", lambda draw, stack: Sparse(draw(*stack, 7), ENTRIES)),
    Example("channel-dense", lambda draw, stack: ChannelDense(draw(*stack, 4, 2, 2), POSITIONS)),
    Example("selection", make_selection),
    Example(
        "selection-transposed", lambda draw, stack: make_selection(draw, stack, transposed=True)
    ),
    Example("banded", lambda draw, stack: Banded(draw(*stack, 2, 6), 1)),
    Example(
        "convolution",
        lambda draw, stack: Convolution(draw(*stack, 2, 2, 2), (3,), padding=((1, 0),)).transpose(),
    ),
    Example(
        "low-rank",
        lambda draw, stack: LowRankUpdate(draw(*stack, 2, 3), draw(*stack, 2, 3, 1), draw(2, 3, 1)),
    ),
    Example("block-triangular", lambda draw, stack: BlockTriangular(draw(*stack, 6, 2, 2))),
    Example(
        "block-sparse",
        lambda draw, stack: BlockSparse(
            (Identity(2, draw.dtype), Dense(draw(*stack, 2, 4)), Diagonal(draw(*stack, 4))),
            ((0, 0), (0, 1), (1, 1)),
            rows=(2, 4),
            cols=(2, 4),
        ),
    ),
    Example(
        "sum",
        lambda draw, stack: Sum((Identity(6), Dense(draw(6, 6)), Diagonal(draw(*stack, 6)))),
    ),
]
# Matrix-free operators do not compose; the rectangular rows compose with what fits.
OTHERS = [
    Example("rectangular", lambda draw, stack: Dense(draw(*stack, 3, 6))),
    Example("matrix-free", make_matrix_free),
    Example("channel-slice", lambda draw, stack: ChannelSlice(2, 3, 1, 2, draw.dtype)),
    Example(
        "rectangular-sparse",
        lambda draw, stack: Sparse(
            draw(*stack, 2), Pattern.from_coordinates([1, 0], [1, 3], (2, 4))
        ),
    ),
    Example(
        "rectangular-blocks",
        lambda draw, stack: ChannelDense(
            draw(*stack, 2, 1, 2), Pattern.from_coordinates([1, 0], [1, 2], (2, 3))
        ),
    ),
]
EXAMPLES = SQUARE + OTHERS
