"""Where the tile kernels get their maps from: memory, or a weight matrix kept on chip."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from parscan_bp.kernels import compat
from parscan_bp.kernels.compat import from_zero, plgpu
from parscan_bp.kernels.tiles import Tile, tile_of


@dataclasses.dataclass(frozen=True)
class Maps:
    """A_t (T, B, H, H) as it is, or W diag(d_t), of which only d is read step by step.

    Attributes:
      matrix: A (T, B, H, H), or W (H, H).
      d: (T, B, H), or ``None`` if ``matrix`` is A.
    """

    matrix: Any
    d: Any = None

    @property
    def arrays(self) -> list[Any]:
        return [self.matrix] if self.d is None else [self.d, self.matrix]

    @property
    def itemsize(self) -> int:
        return self.matrix.dtype.itemsize

    def map_steps(self, f: Callable) -> Maps:
        """With ``f`` applied to what has an entry per step."""
        return Maps(f(self.matrix)) if self.d is None else Maps(self.matrix, f(self.d))

    def tile(self, batch: int, size: int) -> Tile:
        return tile_of(size, batch, self.itemsize, self.d is not None)

    def step_bytes(self, tile: Tile) -> int:
        """Shared memory for one step that is fetched ahead, its b included."""
        vectors = 2 * tile.pairs * tile.rows * 4
        matrix = tile.pairs * tile.rows * tile.pitch * self.itemsize
        return vectors + (matrix if self.d is None else 0)

    def held_bytes(self, tile: Tile) -> int:
        """Shared memory for what stays there."""
        return 0 if self.d is None else tile.pairs * tile.rows * tile.pitch * self.itemsize

    def held_arrivals(self, tile: Tile) -> int:
        """Copies that bring what stays."""
        return 1 if self.d is None else tile.pairs

    def scratch(self, tile: Tile, depth: int) -> list[Any]:
        shape = (tile.pairs, tile.rows, tile.pitch)
        if self.d is None:
            return [plgpu.SMEM((depth, *shape), self.matrix.dtype)]
        vectors = plgpu.SMEM((depth, tile.pairs, tile.rows), self.d.dtype)
        return [plgpu.SMEM(shape, self.matrix.dtype), vectors]

    def reader(self, tile: Tile, refs, scratch, samples, zero) -> Reader:
        return Reader(tile, refs, scratch, samples, zero)


@dataclasses.dataclass(frozen=True)
class Reader:
    """`Maps` inside a kernel.

    Attributes:
      tile: shape of the instance.
      refs: the arrays of `Maps` in memory.
      scratch: its shared memory.
      samples: slice of the batch.
      zero: any non-negative traced integer, see `compat.from_zero`.
    """

    tile: Tile
    refs: Any
    scratch: Any
    samples: Any
    zero: Any

    @property
    def shares(self) -> bool:
        """Whether threads write what others read before a step's product: here, d times what
        it is multiplied with."""
        return len(self.refs) == 2

    def fetch(self, t, slot, barrier) -> None:
        """Starts the copy of what step t needs, or of what a slice of steps does."""
        row = from_zero(self.zero, self.tile.rows)
        if len(self.refs) == 1:
            column = from_zero(self.zero, self.tile.pitch)
            source, target = self.refs[0].at[t, self.samples, row, column], self.scratch[0]
        else:
            source, target = self.refs[0].at[t, self.samples, row], self.scratch[1]
        compat.fetch(source, target.at[slot], barrier)

    def fetch_held(self, barrier) -> None:
        """Brings W, once per pair, so that a layout of (pair, row, column) reads it."""
        if len(self.refs) == 1:
            return
        row = from_zero(self.zero, self.tile.rows)
        column = from_zero(self.zero, self.tile.pitch)
        for p in range(self.tile.pairs):
            compat.fetch(self.refs[1].at[row, column], self.scratch[0].at[p], barrier)
        plgpu.barrier_wait(barrier)

    def at(self, slot) -> tuple[Any, Any]:
        """(matrix, d or ``None``) of the step in ``slot``, in shared memory."""
        if len(self.refs) == 1:
            return self.scratch[0].at[slot], None
        return self.scratch[0], self.scratch[1].at[slot]
