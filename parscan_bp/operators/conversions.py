"""The same maps in a larger sparse structure."""

from __future__ import annotations

import functools

import jax.numpy as jnp
import numpy as np

from parscan_bp.operators.banded import Banded
from parscan_bp.operators.base import Operator
from parscan_bp.operators.block_diagonal import BlockDiagonal
from parscan_bp.operators.channel_dense import ChannelDense
from parscan_bp.operators.convolution import Convolution
from parscan_bp.operators.diagonal import Diagonal
from parscan_bp.operators.entries import entries_of
from parscan_bp.operators.selection import Selection
from parscan_bp.operators.sparse import Sparse
from parscan_bp.sparsity import Pattern
from parscan_bp.sparsity.pattern import on_device
from parscan_bp.sparsity.plan import pick
from parscan_bp.sparsity.windows import window_pattern
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
    if isinstance(op, Selection) and kind is ChannelDense:
        pattern, entries = channel_diagonal(op)
        eye = jnp.eye(op.channels, dtype=bool)
        return ChannelDense(jnp.where(eye, entries[..., None], 0), pattern)
    if isinstance(op, Convolution) and kind is ChannelDense:
        return _convolution_blocks(op)
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
        return Sparse(pick(_ravel(op.blocks, 3), order), pattern)
    if isinstance(op, ChannelDense):
        pattern, order = op.pattern.expand(*op.channels)
        return Sparse(pick(_ravel(op.blocks, 3), order), pattern)
    if isinstance(op, Selection):
        positions, entries = channel_diagonal(op)
        pattern, order = positions.expand(op.channels, op.channels, diagonal=True)
        return Sparse(pick(_ravel(entries, 2), order), pattern)
    if isinstance(op, Banded):
        pattern, order = _band(op.shape[0], op.lower, op.upper)
        return Sparse(pick(_ravel(op.bands, 2), order), pattern)
    if isinstance(op, Convolution):
        return entries_of(op).sparse(op.kernel)
    return None


def channel_diagonal(op: Selection) -> tuple[Pattern, Array]:
    """The pattern of ``op`` between positions, and (..., nnz, channels), what stands there."""
    entries = op.entries()
    if not op.transposed:
        return op.pattern, entries
    pattern, order = op.pattern.transposed
    return pattern, pick(entries, order, axis=-2)


def _convolution_blocks(op: Convolution) -> ChannelDense:
    """The kernel's blocks where a window connects two positions; other groups are zeros."""
    pattern, window = window_pattern(op.axes)
    lead = op.kernel.ndim - len(op.window)
    kernel = op.kernel.reshape(*op.kernel.shape[: lead - 2], -1, *op.kernel.shape[-2:])
    if op.groups > 1:
        group = lambda channels: np.arange(channels) // (channels // op.groups)  # noqa: E731
        own = group(op.in_shape[-1])[:, None] == group(op.out_shape[-1])
        kernel = jnp.where(own, jnp.concatenate([kernel] * op.groups, axis=-2), 0)
    blocks = ChannelDense(pick(kernel, window, axis=-3), pattern)
    return blocks if op.transposed else blocks.transpose()


@functools.lru_cache(maxsize=32)
def _band(n: int, lower: int, upper: int) -> tuple[Pattern, Array]:
    row, band = (axis.ravel() for axis in np.indices((n, lower + upper + 1)))
    col = row + band - lower
    inside = (col >= 0) & (col < n)
    pattern = Pattern.from_coordinates(row[inside], col[inside], (n, n))
    return pattern, on_device((band * n + row)[inside].astype(np.int32))


def _ravel(x: Array, ndim: int) -> Array:
    return x.reshape(*x.shape[: x.ndim - ndim], -1)
