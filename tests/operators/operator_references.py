"""What matrices each structure stands for, by NumPy.

They come from the leaves in double precision, by loops that follow the definitions in the
docstrings and share no code with the package.
"""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

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


def wide(x) -> np.ndarray:
    """An array in double precision."""
    x = np.asarray(x)
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


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
