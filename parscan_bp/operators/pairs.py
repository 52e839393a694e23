"""The table of products: b a, first ``a``, then ``b``.

A row says when it applies. Where the product would fill up it does not, and both operands are
brought to a denser structure first.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from parscan_bp.operators.arithmetic import accumulation_dtype, einsum, matmul
from parscan_bp.operators.banded import Banded, pad_last
from parscan_bp.operators.base import Operator
from parscan_bp.operators.block_diagonal import BlockDiagonal
from parscan_bp.operators.channel_dense import ChannelDense
from parscan_bp.operators.channel_slice import ChannelSlice
from parscan_bp.operators.convolution import Convolution
from parscan_bp.operators.dense import Dense
from parscan_bp.operators.diagonal import Diagonal
from parscan_bp.operators.selection import Selection
from parscan_bp.operators.sparse import Sparse, first
from parscan_bp.sparsity import (
    BlockPlan,
    Pattern,
    ProductPlan,
    count_products,
    multiply,
    plan_blocks,
    plan_product,
)
from parscan_bp.sparsity.plan import pick
from parscan_bp.types import Array

FULL = 0.25
"""Part of all entries above which a product entry by entry is made dense instead: each of its
multiply-adds reads two places beside two numbers, from anywhere, on any machine."""
FULL_BLOCKS = 0.5
"""The same for blocks and bands, whose arithmetic is that of dense products."""


def _always(a: Operator, b: Operator) -> bool:
    return True


def pairs_that_meet(a: Operator, b: Operator) -> int:
    """Flops where each number of b multiplies the numbers of a row of a, or as b says."""
    return b.product_flops(a)


class Row(NamedTuple):
    """A row of the table of products: b a, first ``a``, then ``b``.

    Args:
      product: (a, b) -> b a.
      flops: of the product of one map with another.
      fits: whether two operators of these structures multiply in this way; if not, both are
        brought to a larger structure.
      shape: (a, b) -> the product with `jax.ShapeDtypeStruct` leaves, where finding that by tracing
        ``product`` would plan its numeric phase too.
    """

    product: Callable[..., Operator]
    flops: Callable[..., int] = pairs_that_meet
    fits: Callable[..., bool] = _always
    shape: Callable[..., Operator] | None = None


# Blocks and what is full.


def _grouped(diagonal: Array, b: int) -> Array:
    """(..., n / b, b): the diagonal as each block takes it."""
    return jnp.reshape(diagonal, (*diagonal.shape[:-1], diagonal.shape[-1] // b, b))


def _dense_after_blocks(a: BlockDiagonal, b: Dense) -> Dense:
    # Columns of B in groups: (m, k, b) times (k, b, b).
    columns = _grouped(b.matrix, a.block)
    product = einsum("...mkb,...kbc->...mkc", columns, a.blocks)
    return Dense(product.reshape(*product.shape[:-2], math.prod(product.shape[-2:])))


def _blocks_after_dense(a: Dense, b: BlockDiagonal) -> Dense:
    # Rows of A in groups: (k, b, b) times (k, b, m).
    rows = jnp.reshape(
        a.matrix, (*a.matrix.shape[:-2], a.matrix.shape[-2] // b.block, b.block, a.matrix.shape[-1])
    )
    product = einsum("...kab,...kbm->...kam", b.blocks, rows)
    return Dense(
        product.reshape(*product.shape[:-3], math.prod(product.shape[-3:-1]), product.shape[-1])
    )


# Entry by entry.


@jax.jit
def _entry_product(plan: ProductPlan, b: Array, a: Array) -> Array:
    dtype = jnp.result_type(a, b)
    wide = accumulation_dtype(dtype)
    b, a = jnp.asarray(b, wide), jnp.asarray(a, wide)
    return plan.sum(lambda i, j: pick(b, i) * pick(a, j), axis=-1).astype(dtype)


def _sparse_sparse(a: Sparse, b: Sparse) -> Sparse:
    plan = plan_product(b.pattern, a.pattern)
    return Sparse(_entry_product(plan, b.data, a.data), plan.pattern)


def _stays_sparse(a: Sparse, b: Sparse) -> bool:
    # A list of products longer than the dense result is never built.
    entries = b.shape[0] * a.shape[1]
    few = count_products(b.pattern, a.pattern) <= entries
    return few and multiply(b.pattern, a.pattern).fill <= FULL


def _struct(op: Operator, other: Operator, pattern: Pattern, core: tuple[int, ...]):
    """Abstract numbers of a product, and abstract row and column numbers of its pattern."""
    stack = np.broadcast_shapes(op.stack_shape, other.stack_shape)
    numbers = jax.ShapeDtypeStruct((*stack, *core), jnp.result_type(op.dtype, other.dtype))
    index = jax.ShapeDtypeStruct((pattern.nnz,), jnp.int32)
    return numbers, pattern, index, index


def _sparse_shape(a: Sparse, b: Sparse) -> Sparse:
    pattern = multiply(b.pattern, a.pattern)
    return Sparse(*_struct(a, b, pattern, (pattern.nnz,)))


# Blocks of channels.


@jax.jit
def _block_product(plan: BlockPlan, b: Array, a: Array) -> Array:
    dtype = jnp.result_type(a, b)
    wide = accumulation_dtype(dtype)
    multiply = functools.partial(plan.multiply, matmul=matmul)
    product = jnp.vectorize(multiply, signature="(p,i,j),(q,j,k)->(r,i,k)")
    return product(jnp.asarray(b, wide), jnp.asarray(a, wide)).astype(dtype)


def _blocks_blocks(a: ChannelDense, b: ChannelDense) -> ChannelDense:
    plan = plan_blocks(b.pattern, a.pattern)
    return ChannelDense(_block_product(plan, b.blocks, a.blocks), plan.pattern)


@jax.jit
def _columns_of_blocks(plan: ProductPlan, blocks: Array, diagonals: Array) -> Array:
    term = lambda i, j: pick(blocks, i, axis=-3) * pick(diagonals, j, axis=-2)[..., None, :]  # noqa: E731
    return plan.sum(term, axis=-3)


@jax.jit
def _rows_of_blocks(plan: ProductPlan, diagonals: Array, blocks: Array) -> Array:
    term = lambda i, j: pick(diagonals, i, axis=-2)[..., None] * pick(blocks, j, axis=-3)  # noqa: E731
    return plan.sum(term, axis=-3)


def _blocks_after_selection(a: Selection, b: ChannelDense) -> ChannelDense:
    pattern, entries = a.channel_diagonal()
    plan = plan_product(b.pattern, pattern)
    return ChannelDense(_columns_of_blocks(plan, b.blocks, entries), plan.pattern)


def _selection_after_blocks(a: ChannelDense, b: Selection) -> ChannelDense:
    pattern, entries = b.channel_diagonal()
    plan = plan_product(pattern, a.pattern)
    return ChannelDense(_rows_of_blocks(plan, entries, a.blocks), plan.pattern)


def _positions(op: ChannelDense | Selection) -> Pattern:
    if isinstance(op, ChannelDense):
        return op.pattern
    return op.pattern.transposed[0] if op.transposed else op.pattern


def _channels(op: ChannelDense | Selection) -> tuple[int, int]:
    return op.channels if isinstance(op, ChannelDense) else (op.channels, op.channels)


def same_channels(a: Operator, b: Operator) -> bool:
    """Whether both split the vector between them into the same positions and channels."""
    if not isinstance(a, ChannelDense | Selection) or not isinstance(b, ChannelDense | Selection):
        return False
    return _channels(b)[1] == _channels(a)[0]


def _stays_blocks(a, b) -> bool:
    return same_channels(a, b) and multiply(_positions(b), _positions(a)).fill <= FULL_BLOCKS


def _block_flops(a, b) -> int:
    pairs = count_products(_positions(b), _positions(a))
    (rows, middle), cols = _channels(b), _channels(a)[1]
    both = isinstance(a, ChannelDense) and isinstance(b, ChannelDense)
    return 2 * pairs * rows * cols * (middle if both else 1)


def _blocks_shape(a, b) -> ChannelDense:
    pattern = multiply(_positions(b), _positions(a))
    core = (pattern.nnz, _channels(b)[0], _channels(a)[1])
    return ChannelDense(*_struct(a, b, pattern, core))


# Selections of selections.


@functools.partial(jnp.vectorize, signature="(m,c),(o,c)->(o,c)")
def _follow(numbers: Array, source: Array) -> Array:
    nothing = 0 if jnp.issubdtype(numbers.dtype, jnp.inexact) else -1
    taken = jnp.take_along_axis(numbers, jnp.maximum(source, 0), axis=0)
    return jnp.where(source >= 0, taken, nothing)


def _selection_selection(a: Selection, b: Selection) -> Selection:
    # The transposed ones are S_b^T S_a^T = (S_a S_b)^T.
    outer, inner = (a, b) if a.transposed else (b, a)
    return Selection(
        _follow(outer.source, inner.source),
        _follow(outer.weight, inner.source) * inner.weight,
        multiply(outer.pattern, inner.pattern),
        a.transposed,
    )


def _stays_selection(a: Selection, b: Selection) -> bool:
    return a.transposed == b.transposed and a.channels == b.channels


def _scaled_selection(op: Selection, diagonal: Array, at_outputs: bool) -> Selection:
    """Outputs or inputs scaled, whichever axis of the matrix they are."""
    factor = _grouped(diagonal, op.channels)
    factor = factor if at_outputs else _follow(factor, op.source)
    return Selection(op.source, factor * op.weight, op.pattern, op.transposed)


# Bands.


def _banded_banded(a: Banded, b: Banded) -> Banded:
    # (B A)_(i, i + d) = sum_k B_(i, i + k) A_(i + k, i + d), k and d counted from the lowest.
    dtype = jnp.result_type(a.dtype, b.dtype)
    wide = accumulation_dtype(dtype)
    n, a_width, b_width = a.shape[0], a.bands.shape[-2], b.bands.shape[-2]
    left = jnp.asarray(b.bands, wide)
    right = pad_last(jnp.asarray(a.bands, wide), b.lower, b.upper)
    bands = []
    for d in range(a_width + b_width - 1):
        middle = range(max(0, d - a_width + 1), min(b_width, d + 1))
        terms = [left[..., k, :] * right[..., d - k, k : k + n] for k in middle]
        bands.append(functools.reduce(jnp.add, terms))
    return Banded(jnp.stack(bands, axis=-2).astype(dtype), a.lower + b.lower)


def _stays_banded(a: Banded, b: Banded) -> bool:
    width = a.bands.shape[-2] + b.bands.shape[-2] - 1
    return width <= FULL_BLOCKS * a.shape[0]


def _banded_columns(a: Diagonal, b: Banded) -> Banded:
    padded = pad_last(a.diagonal, b.lower, b.upper)
    n, width = b.bands.shape[-1], b.bands.shape[-2]
    moved = jnp.stack([padded[..., d : d + n] for d in range(width)], axis=-2)
    return Banded(b.bands * moved, b.lower)


# Dense ones, a column at a time in the other's own structure.


def _after_dense(a: Dense, b: Operator) -> Dense:
    return Dense(jax.vmap(b.matvec, in_axes=-1, out_axes=-1)(a.matrix))


def _before_dense(a: Operator, b: Dense) -> Dense:
    return Dense(jax.vmap(a.transpose().matvec, in_axes=-2, out_axes=-2)(b.matrix))


def _at_blocks(diagonal: Array, channels: int, positions: Array) -> Array:
    """(..., nnz, channels): the diagonal at the positions of each block."""
    return pick(_grouped(diagonal, channels), first(positions), axis=-2)


# A diagonal scales columns when it comes first, rows when it comes second.


def _sparse_columns(a: Diagonal, b: Sparse) -> Sparse:
    return Sparse(b.data * pick(a.diagonal, first(b.cols)), b.pattern, b.rows, b.cols)


def _sparse_rows(a: Sparse, b: Diagonal) -> Sparse:
    return Sparse(pick(b.diagonal, first(a.rows)) * a.data, a.pattern, a.rows, a.cols)


def _channel_columns(a: Diagonal, b: ChannelDense) -> ChannelDense:
    scale = _at_blocks(a.diagonal, b.channels[1], b.cols)[..., None, :]
    return ChannelDense(b.blocks * scale, b.pattern, b.rows, b.cols)


def _channel_rows(a: ChannelDense, b: Diagonal) -> ChannelDense:
    scale = _at_blocks(b.diagonal, a.channels[0], a.rows)[..., None]
    return ChannelDense(scale * a.blocks, a.pattern, a.rows, a.cols)


def _beside_diagonal(kind: type[Operator], columns: Callable, rows: Callable):
    """The two rows of a structure each of whose numbers a diagonal multiplies once."""
    return {
        (Diagonal, kind): Row(columns, lambda a, b: b.nnz),
        (kind, Diagonal): Row(rows, lambda a, b: a.nnz),
    }


BY_COLUMNS = (ChannelDense, ChannelSlice, Convolution, Selection, Banded)
"""What multiplies a full matrix a column at a time, in its own structure."""

PAIRS: dict[tuple[type[Operator], type[Operator]], Row] = {
    (Diagonal, Diagonal): Row(
        lambda a, b: Diagonal(jnp.multiply(b.diagonal, a.diagonal)), lambda a, b: a.nnz
    ),
    (BlockDiagonal, BlockDiagonal): Row(
        lambda a, b: BlockDiagonal(matmul(b.blocks, a.blocks)),
        fits=lambda a, b: a.block == b.block,
    ),
    (Dense, Dense): Row(lambda a, b: Dense(matmul(b.matrix, a.matrix))),
    (BlockDiagonal, Dense): Row(_dense_after_blocks),
    (Dense, BlockDiagonal): Row(_blocks_after_dense),
    (Sparse, Sparse): Row(
        _sparse_sparse,
        lambda a, b: 2 * count_products(b.pattern, a.pattern),
        _stays_sparse,
        _sparse_shape,
    ),
    (ChannelDense, ChannelDense): Row(_blocks_blocks, _block_flops, _stays_blocks, _blocks_shape),
    (Selection, ChannelDense): Row(
        _blocks_after_selection, _block_flops, _stays_blocks, _blocks_shape
    ),
    (ChannelDense, Selection): Row(
        _selection_after_blocks, _block_flops, _stays_blocks, _blocks_shape
    ),
    (Selection, Selection): Row(
        _selection_selection,
        lambda a, b: (b if a.transposed else a).nnz,
        _stays_selection,
    ),
    (Banded, Banded): Row(
        _banded_banded,
        lambda a, b: 2 * a.bands.shape[-2] * b.bands.shape[-2] * a.shape[0],
        _stays_banded,
    ),
    **_beside_diagonal(
        BlockDiagonal,
        lambda a, b: BlockDiagonal(b.blocks * _grouped(a.diagonal, b.block)[..., None, :]),
        lambda a, b: BlockDiagonal(_grouped(b.diagonal, a.block)[..., None] * a.blocks),
    ),
    **_beside_diagonal(
        Dense,
        lambda a, b: Dense(b.matrix * a.diagonal[..., None, :]),
        lambda a, b: Dense(b.diagonal[..., None] * a.matrix),
    ),
    **_beside_diagonal(Sparse, _sparse_columns, _sparse_rows),
    **_beside_diagonal(ChannelDense, _channel_columns, _channel_rows),
    **_beside_diagonal(
        Selection,
        lambda a, b: _scaled_selection(b, a.diagonal, not b.transposed),
        lambda a, b: _scaled_selection(a, b.diagonal, a.transposed),
    ),
    **_beside_diagonal(
        Banded,
        _banded_columns,
        lambda a, b: Banded(b.diagonal[..., None, :] * a.bands, a.lower),
    ),
    **{(Dense, kind): Row(_after_dense) for kind in BY_COLUMNS},
    **{(kind, Dense): Row(_before_dense) for kind in BY_COLUMNS},
}


_OWN = Row(
    lambda a, b: b.after(a),
    fits=lambda a, b: b.multiplies(a),
    shape=lambda a, b: b.product_shape(a),
)


def row_of(a: Operator, b: Operator) -> Row | None:
    """How two operators are multiplied as they are, if there is a way.

    A structure that has no row in the table has its own `Operator.after`, for what it multiplies.
    """
    row = PAIRS.get((type(a), type(b)), _OWN)
    return row if row.fits(a, b) else None
