"""One row for each structure: how to make a random stack of it, and what matrices it stands for.

The matrices come from the leaves by NumPy in double precision, by loops that follow the
definitions in the docstrings and share no code with the package. Names of the form *_examples.py
are data for the tests beside them.
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

X64 = jnp.result_type(float) == jnp.float64
DTYPES = ["float32", "bfloat16", "complex64", *(["float64", "complex128"] if X64 else [])]
LENGTH, BATCH = 5, 2
STACKS = [(), (LENGTH,), (LENGTH, BATCH)]


def wide(x) -> np.ndarray:
    """An array in double precision."""
    x = np.asarray(x)
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


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


def over_stack(one: Callable[..., np.ndarray], *leaves_and_ndims) -> np.ndarray:
    """`one(*core leaves)` for every entry of the broadcast stack."""
    leaves = [(wide(leaf), ndim) for leaf, ndim in leaves_and_ndims]
    stack = np.broadcast_shapes(*[a.shape[: a.ndim - n] for a, n in leaves])
    full = [np.broadcast_to(a, stack + a.shape[a.ndim - n :]) for a, n in leaves]
    maps = [one(*[a[index] for a in full]) for index in np.ndindex(*stack)]
    return np.stack(maps).reshape(*stack, *maps[0].shape)


def block_diagonal(blocks):
    k, b, _ = blocks.shape
    out = np.zeros((k * b, k * b), blocks.dtype)
    for i in range(k):
        out[i * b : (i + 1) * b, i * b : (i + 1) * b] = blocks[i]
    return out


def factored(op: Factored) -> np.ndarray:
    def one(weight, gates, direct):
        groups, states, units = gates.shape
        out = np.zeros((states * units, states * units), np.result_type(weight, gates, direct))
        for s in range(states):
            spread = np.concatenate([np.diag(gates[g, s]) for g in range(groups)])
            out[:units, s * units : (s + 1) * units] += weight @ spread
            for r in range(states):
                rows, cols = slice(s * units, (s + 1) * units), slice(r * units, (r + 1) * units)
                out[rows, cols] += np.diag(direct[s, r])
        return out.T if op.transposed else out

    states, units = op.gates.shape[-2:]
    direct = np.zeros((states, states, units)) if op.direct is None else op.direct
    return over_stack(one, (op.weight, 2), (op.gates, 3), (direct, 3))


def scaled(op: Scaled) -> np.ndarray:
    ((numbers, _),) = op.mantissa.leaves()
    values = wide(numbers) * 2.0 ** np.asarray(op.exponent)
    return reference(op.mantissa.map_leaves(lambda *_: values))


def product(op: Product) -> np.ndarray:
    out = reference(op.factors[0])
    for factor in op.factors[1:]:
        out = out @ reference(factor)
    return out


def matrix_free(op: MatrixFree) -> np.ndarray:
    weight, slope = op.linear.args
    out = over_stack(lambda w, s: w @ np.diag(s), (weight, 2), (slope, 1))
    return np.swapaxes(out, -1, -2) if op.transposed else out


def sparse(op: Sparse) -> np.ndarray:
    def one(data):
        out = np.zeros(op.shape, data.dtype)
        for row in range(op.shape[0]):
            for k in range(op.pattern.indptr[row], op.pattern.indptr[row + 1]):
                out[row, op.pattern.indices[k]] += data[k]
        return out

    return over_stack(one, (op.data, 1))


def channel_dense(op: ChannelDense) -> np.ndarray:
    def one(blocks):
        _, i, j = blocks.shape
        out = np.zeros(op.shape, blocks.dtype)
        for block, r, c in zip(blocks, op.pattern.rows, op.pattern.indices, strict=True):
            out[r * i : (r + 1) * i, c * j : (c + 1) * j] = block
        return out

    return over_stack(one, (op.blocks, 3))


def selection(op: Selection) -> np.ndarray:
    inputs, outputs = op.pattern.shape

    def one(source, weight):
        channels = source.shape[1]
        out = np.zeros((inputs * channels, outputs * channels), weight.dtype)
        for o in range(outputs):
            for c in range(channels):
                out[int(source[o, c].real) * channels + c, o * channels + c] = weight[o, c]
        return out.T if op.transposed else out

    return over_stack(one, (op.source, 2), (op.weight, 2))


def banded(op: Banded) -> np.ndarray:
    def one(bands):
        width, n = bands.shape
        out = np.zeros((n, n), bands.dtype)
        for d in range(width):
            for i in range(n):
                if 0 <= i + d - op.lower < n:
                    out[i, i + d - op.lower] = bands[d, i]
        return out

    return over_stack(one, (op.bands, 2))


def low_rank(op: LowRankUpdate) -> np.ndarray:
    def one(diagonal, left, right):
        return block_diagonal(
            np.stack([np.diag(d) + x @ y.T for d, x, y in zip(diagonal, left, right, strict=True)])
        )

    return over_stack(one, (op.diagonal, 2), (op.left, 3), (op.right, 3))


def block_triangular(op: BlockTriangular) -> np.ndarray:
    def one(blocks):
        k, b = next(k for k in range(9) if k * (k + 1) == 2 * len(blocks)), blocks.shape[-1]
        out, each = np.zeros((k * b, k * b), blocks.dtype), iter(blocks)
        for i in range(k):
            for j in range(i, k):
                row, col = (j, i) if op.lower else (i, j)
                out[row * b : (row + 1) * b, col * b : (col + 1) * b] = next(each)
        return out

    return over_stack(one, (op.blocks, 3))


def block_sparse(op: BlockSparse) -> np.ndarray:
    out = np.zeros((*op.stack_shape, sum(op.rows), sum(op.cols)), complex)
    for block, (i, j) in zip(op.blocks, op.places, strict=True):
        row, col = sum(op.rows[:i]), sum(op.cols[:j])
        out[..., row : row + op.rows[i], col : col + op.cols[j]] += reference(block)
    return out if jnp.issubdtype(op.dtype, jnp.complexfloating) else out.real


def channel_slice(op: ChannelSlice) -> np.ndarray:
    out = np.zeros((op.positions * op.count, op.positions * op.channels))
    for p in range(op.positions):
        for c in range(op.count):
            out[p * op.count + c, p * op.channels + op.start + c] = 1
    return out.T if op.transposed else out


def convolution(op: Convolution) -> np.ndarray:
    """Of one spatial axis, with padding and nothing else."""
    ((low, high),) = op.padding
    (size,) = op.spatial

    def one(kernel):
        window, inner, out = kernel.shape
        places = size + low + high - window + 1
        matrix = np.zeros((places, out, size, inner), kernel.dtype)
        for p in range(places):
            for w in range(window):
                if 0 <= p + w - low < size:
                    matrix[p, :, p + w - low] = kernel[w].T
        matrix = matrix.reshape(places * out, size * inner)
        return matrix.T if op.transposed else matrix

    return over_stack(one, (op.kernel, 3))


def transposed(matrices) -> np.ndarray:
    """The plain transpose of each matrix."""
    return np.swapaxes(matrices, -1, -2)


REFERENCES = {
    Dense: lambda op: wide(op.matrix),
    Diagonal: lambda op: over_stack(np.diag, (op.diagonal, 1)),
    BlockDiagonal: lambda op: over_stack(block_diagonal, (op.blocks, 3)),
    Identity: lambda op: np.eye(op.size),
    Factored: factored,
    Product: product,
    Scaled: scaled,
    MatrixFree: matrix_free,
    Sparse: sparse,
    ChannelDense: channel_dense,
    Selection: selection,
    Banded: banded,
    BlockTriangular: block_triangular,
    LowRankUpdate: low_rank,
    BlockSparse: block_sparse,
    ChannelSlice: channel_slice,
    Convolution: convolution,
    Sum: lambda op: sum(reference(term) for term in op.terms),
}


def reference(op: Operator) -> np.ndarray:
    """The matrices (..., rows, cols) of an operator, in double precision."""
    return REFERENCES[type(op)](op)


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
