"""The same maps in a larger sparse structure."""

from __future__ import annotations

import functools
import math

import jax.numpy as jnp
import numpy as np

from parscan_bp.operators.banded import Banded
from parscan_bp.operators.base import Operator
from parscan_bp.operators.block_diagonal import BlockDiagonal
from parscan_bp.operators.channel_dense import ChannelDense
from parscan_bp.operators.convolution import Convolution
from parscan_bp.operators.diagonal import Diagonal
from parscan_bp.operators.selection import Selection
from parscan_bp.operators.sparse import Sparse
from parscan_bp.sparsity import Pattern
from parscan_bp.sparsity.pattern import on_device
from parscan_bp.sparsity.plan import pick
from parscan_bp.sparsity.windows import masked_windows, window_pattern
from parscan_bp.types import Array


def convert(op: Operator, kind: type[Operator]) -> Operator | None:
    """``op`` as an operator of a sparse structure, or ``None`` where that does not hold it."""
    if kind is Sparse:
        return to_sparse(op)
    if isinstance(op, Diagonal) and kind is Banded:
        return Banded(op.diagonal[..., None, :], 0)
    if isinstance(op, Diagonal) and kind is Selection:
        source = on_device(np.arange(op.shape[0], dtype=np.int32)[:, None])
        return Selection(source, op.diagonal[..., None], Pattern.diagonal(op.shape[0]))
    if isinstance(op, Diagonal) and kind is ChannelDense:
        return ChannelDense(op.diagonal[..., None, None], Pattern.diagonal(op.shape[0]))
    if isinstance(op, Convolution) and kind is ChannelDense:
        return to_blocks(op)
    if isinstance(op, Selection) and kind is ChannelDense:
        pattern, entries = channel_diagonal(op)
        eye = jnp.eye(op.channels, dtype=bool)
        return ChannelDense(jnp.where(eye, entries[..., None], 0), pattern)
    return None


def to_sparse(op: Operator) -> Sparse | None:
    """``op`` entry by entry, or ``None`` where no pattern is known; explicit zeros are kept."""
    if isinstance(op, Sparse):
        return op
    if isinstance(op, Diagonal):
        return Sparse(op.diagonal, Pattern.diagonal(op.shape[0]))
    if isinstance(op, BlockDiagonal):
        blocks = Pattern.diagonal(op.shape[0] // op.block)
        pattern, order = blocks.expand(op.block, op.block)
        return Sparse(_reordered(_ravel(op.blocks, 3), order), pattern)
    if isinstance(op, ChannelDense):
        pattern, order = op.pattern.expand(*op.channels)
        return Sparse(_reordered(_ravel(op.blocks, 3), order), pattern)
    if isinstance(op, Selection):
        positions, entries = channel_diagonal(op)
        pattern, order = positions.expand(op.channels, op.channels, diagonal=True)
        return Sparse(_reordered(_ravel(entries, 2), order), pattern)
    if isinstance(op, Convolution):
        return to_sparse(to_blocks(op)) if op.mask is None else _kept_entries(op, op.mask)
    if isinstance(op, Banded):
        pattern, order = _band(op.shape[0], op.lower, op.upper)
        return Sparse(pick(_ravel(op.bands, 2), order), pattern)
    return None


def unpacked(op: Operator) -> Operator:
    """A convolution as the matrix whose products are made; every other operator as it is.

    Pruned kernels give numbers one by one, the others blocks of channels.
    """
    if isinstance(op, Convolution):
        return to_blocks(op) if op.mask is None else _kept_entries(op, op.mask)
    return op


def to_blocks(op: Convolution) -> ChannelDense:
    """A convolution with one copy of its window's entry for each pair of positions it connects.

    Groups of channels become blocks with zeros between them.
    """
    pattern, entry = window_pattern(op.axes)
    inner, out = op.kernel.shape[-2:]
    entries = math.prod(op.window)
    kernel = op.kernel.reshape(*op.stack_shape, entries, 1, inner, op.groups, out // op.groups)
    own = jnp.eye(op.groups, dtype=bool)[:, None, :, None]
    full = jnp.where(own, kernel, 0).reshape(*op.stack_shape, entries, op.groups * inner, out)
    blocks = ChannelDense(pick(full, on_device(entry.astype(np.int32)), axis=-3), pattern)
    return blocks if op.transposed else blocks.transpose()


def _kept_entries(op: Convolution, mask: Pattern) -> Sparse:
    pattern, entry = masked_windows(op.axes, mask, op.groups)
    kept = Sparse(pick(_ravel(op.kernel, len(op.spatial) + 2), entry), pattern)
    return kept if op.transposed else kept.transpose()


def channel_diagonal(op: Selection) -> tuple[Pattern, Array]:
    """The pattern of ``op`` between positions, and (..., nnz, channels), what stands there."""
    entries = op.entries()
    if not op.transposed:
        return op.pattern, entries
    pattern, order = op.pattern.transposed
    return pattern, pick(entries, order, axis=-2)


@functools.lru_cache(maxsize=32)
def _band(n: int, lower: int, upper: int) -> tuple[Pattern, Array]:
    row, band = (axis.ravel() for axis in np.indices((n, lower + upper + 1)))
    col = row + band - lower
    inside = (col >= 0) & (col < n)
    pattern = Pattern.from_coordinates(row[inside], col[inside], (n, n))
    return pattern, on_device((band * n + row)[inside].astype(np.int32))


def _reordered(numbers: Array, order: Array | None) -> Array:
    return numbers if order is None else pick(numbers, order)


def _ravel(x: Array, ndim: int) -> Array:
    kept = x.ndim - ndim
    return x.reshape(*x.shape[:kept], math.prod(x.shape[kept:]))
