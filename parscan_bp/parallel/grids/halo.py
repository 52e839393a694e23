"""Halo exchange: the rows of its neighbours that a block of outputs reads, along one axis."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import jax.numpy as jnp
from jax import lax

from parscan_bp.parallel.grids.layout import AxisBlocks, Split, along
from parscan_bp.sparsity.windows import Axis
from parscan_bp.types import Array


@dataclasses.dataclass(frozen=True)
class Halo:
    """What the blocks of an output read of the blocks of an input that windows slide over.

    Device p holds rows p b .. (p + 1) b of the input and makes rows p c .. (p + 1) c of the output,
    with b and c the sizes of their blocks. Through windows of stride s it reads the input from row
    p c s - low on, so that where b = c s every device reads as much beyond its own block; else the
    blocks drift apart, and each takes its own stretch of what all exchange.

    Attributes:
      axis: the windows.
      parts: number of blocks.

    Example: windows of 3 need a row of each neighbour.
      >>> from parscan_bp.parallel.grids.halo import Halo
      >>> from parscan_bp.sparsity.windows import Axis
      >>> halo = Halo(Axis(8, 3, padding=(1, 1)), 4)
      >>> halo.firsts, halo.rows, halo.low, halo.high
      ((-1, 1, 3, 5), 4, 1, 1)
    """

    axis: Axis
    parts: int

    @property
    def inputs(self) -> AxisBlocks:
        """The blocks of the input."""
        return AxisBlocks(self.axis.size, self.parts)

    @property
    def outputs(self) -> AxisBlocks:
        """The blocks of the output."""
        return AxisBlocks(self.axis.outputs, self.parts)

    def _first(self, part: int) -> int:
        """The first entry of the spread input that a block sees."""
        return part * self.outputs.block * self.axis.stride - self.axis.padding[0]

    @property
    def _full(self) -> range:
        """The blocks with outputs that are not padding."""
        return range(-(-self.outputs.size // self.outputs.block))

    @property
    def firsts(self) -> tuple[int, ...]:
        """The first row of the input that each block reads; before 0 there is none.

        A block that is all padding may read anything: the same, seen from where it lies, as the
        first one.
        """
        shift = self._first(0) // self.axis.spread
        return tuple(
            self._first(p) // self.axis.spread if p in self._full else p * self.inputs.block + shift
            for p in range(self.parts)
        )

    @property
    def rows(self) -> int:
        """How many rows a block reads."""
        span = (self.outputs.block - 1) * self.axis.stride + self.axis.reach
        ends = [(self._first(p) + span - 1) // self.axis.spread for p in self._full]
        return max(end - self.firsts[p] + 1 for p, end in enumerate(ends))

    @property
    def _ends(self) -> tuple[int, ...]:
        """The row behind the last one that each block's outputs see, padding apart."""
        lasts = [min((p + 1) * self.outputs.block, self.outputs.size) - 1 for p in self._full]
        seen = [k * self.axis.stride - self.axis.padding[0] + self.axis.reach - 1 for k in lasts]
        return tuple(at // self.axis.spread + 1 for at in seen)

    @property
    def low(self) -> int:
        """Rows that come from the blocks before."""
        return max(0, *(p * self.inputs.block - max(self.firsts[p], 0) for p in self._full))

    @property
    def high(self) -> int:
        """Rows that come from the blocks behind."""
        ends = [min(end, self.axis.size) for end in self._ends]
        return max(0, *(end - (p + 1) * self.inputs.block for p, end in enumerate(ends)))

    @property
    def reaches_too_far(self) -> bool:
        """Whether a block sees further than all the others: windows as large as the input."""
        block = self.inputs.block
        before = max(p * block - self.firsts[p] for p in self._full)
        behind = max(end - (p + 1) * block for p, end in enumerate(self._ends))
        return max(before, behind) > (self.parts - 1) * block

    @property
    def hops(self) -> tuple[tuple[int, int], ...]:
        """(distance, rows) of each exchange; of a device before if the distance is positive."""

        def of(rows: int) -> Iterator[tuple[int, int]]:
            for distance in range(1, -(-rows // self.inputs.block) + 1):
                yield distance, min(rows - (distance - 1) * self.inputs.block, self.inputs.block)

        return (*of(self.low), *((-distance, rows) for distance, rows in of(self.high)))

    @property
    def skips(self) -> tuple[int, ...]:
        """Windows over what a block reads that come before its own; a spread input's only."""
        return tuple(
            self._first(p) - first * self.axis.spread if p in self._full else 0
            for p, first in enumerate(self.firsts)
        )

    @property
    def pad(self) -> int:
        """Zeros behind what a block reads, once it is spread, up to the end of its last window."""
        span = (self.outputs.block - 1) * self.axis.stride + self.axis.reach
        spread = (self.rows - 1) * self.axis.spread + 1
        wanted = max(self.skips) + span
        if self.axis.spread > 1:
            # XLA on CPU ends the process over the kernel's cotangent (jax 0.10 and 0.12) where
            # windows over a spread input are fewer than its rows.
            wanted = max(wanted, self.rows + self.axis.reach - 1)
        return max(0, wanted - spread)

    @property
    def aligned(self) -> bool:
        """Whether every device reads the same stretch, seen from where its block lies."""
        return len(set(self._offsets)) == 1

    @property
    def _offsets(self) -> tuple[int, ...]:
        """Where what each block reads begins in what it holds after the exchange."""
        block = self.inputs.block
        return tuple(first - p * block + self.low for p, first in enumerate(self.firsts))

    @property
    def lead(self) -> int:
        """Where what an aligned block reads begins, from where the block does."""
        return self._offsets[0] - self.low

    @property
    def interior(self) -> range:
        """The outputs of an aligned block that are made of its own rows alone."""
        stride = self.axis.stride
        first = max(0, -(self.lead // stride))
        last = (self.inputs.block - self.lead - self.axis.reach) // stride
        return range(min(first, self.outputs.block), min(last + 1, self.outputs.block))

    def exchange(self, x: Array, dimension: int, split: Split, fill: float) -> Array:
        """The rows that this device's outputs read, with ``fill`` where there is no input.

        Args:
          x: its block.
          dimension: the axis of ``x``.
          split: the mesh axes that divide it.
          fill: see `Layer.padding_value`.
        """
        held = self._held(x, dimension, split)
        offsets = self._offsets
        before = max(0, -min(offsets))
        after = max(0, max(offsets) + self.rows - held.shape[dimension])
        widths = [(before, after) if k == dimension else (0, 0) for k in range(x.ndim)]
        held = jnp.pad(held, widths) if before or after else held
        read = take(held, dimension, split, [at + before for at in offsets], self.rows)
        if not self.inputs.uneven and fill == 0:
            return read  # what comes from before the first and behind the last device is zero
        return self._where_input(read, dimension, self.positions(split), fill)

    def filled(self, x: Array, dimension: int, split: Split, fill: float) -> Array:
        """The block itself, with ``fill`` where it is padding."""
        if not self.inputs.uneven:
            return x
        at = split.index() * self.inputs.block + jnp.arange(self.inputs.block)
        return self._where_input(x, dimension, at, fill)

    def _where_input(self, x: Array, dimension: int, at: Array, fill: float) -> Array:
        there = (at >= 0) & (at < self.axis.size)
        if math.isinf(fill) and not jnp.issubdtype(x.dtype, jnp.inexact):
            fill = jnp.iinfo(x.dtype).min
        return jnp.where(along(there, dimension, x.ndim), x, jnp.asarray(fill, x.dtype))

    def _held(self, x: Array, dimension: int, split: Split) -> Array:
        """The block with ``low`` rows before it and ``high`` behind it."""
        block = self.inputs.block
        before: list[Array] = []
        behind: list[Array] = []
        for distance, rows in self.hops:
            start = block - rows if distance > 0 else 0
            sent = lax.slice_in_dim(x, start, start + rows, axis=dimension)
            pairs = [(p, p + distance) for p in range(self.parts) if 0 <= p + distance < self.parts]
            came = lax.ppermute(sent, split.axes, pairs)
            (before if distance > 0 else behind).append(came)
        return jnp.concatenate([*before[::-1], x, *behind], dimension) if self.hops else x

    def positions(self, split: Split) -> Array:
        """The rows that this device reads, in the whole input."""
        firsts = jnp.asarray(self.firsts)[split.index()]
        return firsts + jnp.arange(self.rows)

    def own(self, y: Array, dimension: int, split: Split) -> Array:
        """This device's outputs of all that windows over what it reads give."""
        if self.axis.spread == 1:
            return y
        return take(y, dimension, split, self.skips, self.outputs.block)


def take(x: Array, dimension: int, split: Split, starts: list[int] | tuple[int, ...], size: int):
    """``size`` entries of an axis, from this device's start on."""
    if len(set(starts)) == 1:
        return lax.slice_in_dim(x, starts[0], starts[0] + size, axis=dimension)
    start = jnp.asarray(starts)[split.index()]
    return lax.dynamic_slice_in_dim(x, start, size, dimension)
