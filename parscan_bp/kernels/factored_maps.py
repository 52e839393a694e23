"""Maps of gated cells for the tile kernels: formed on chip, never in memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax.numpy as jnp
from jax.experimental import pallas as pl

from parscan_bp.kernels import compat, tiles
from parscan_bp.kernels.compat import from_zero, plgpu
from parscan_bp.kernels.layouts import spread, vector_layout
from parscan_bp.kernels.tiles import Tile


@dataclasses.dataclass(frozen=True)
class FactoredMaps:
    """A_t = sum_g W_g diag(d_g) + sum_k (e_k on diagonal k), with d_g and e_k by step and sample.

    With several groups of units (h and c of an LSTM) the order is that of all of them: W_g has
    zero rows but for those of the first group, and what passes from one group to another lies
    on a diagonal whose offset is a multiple of the group.

    Attributes:
      weights: W (gates, n, n), float32 or bfloat16; the same for all steps.
      vectors: d and then e (T, B, gates + diagonals, n), float32; n a multiple of 16 bytes of W.
      offsets: column minus row of each diagonal.
    """

    weights: Any
    vectors: Any
    offsets: tuple[int, ...]

    @property
    def arrays(self) -> list[Any]:
        return [self.vectors, self.weights]

    @property
    def gates(self) -> int:
        return self.weights.shape[0]

    @property
    def size(self) -> int:
        return self.weights.shape[-1]

    def map_steps(self, f: Callable) -> FactoredMaps:
        """With ``f`` applied to what has an entry per step."""
        return dataclasses.replace(self, vectors=f(self.vectors))

    def tile(self, batch: int, size: int) -> Tile:
        return tiles.tile_of(size, batch, self.weights.dtype.itemsize, True)

    def step_bytes(self, tile: Tile) -> int:
        """Shared memory for one step that is fetched ahead, its b and x included."""
        return (self.vectors.shape[2] + 2) * tile.pairs * tile.rows * 4

    def held_bytes(self, tile: Tile) -> int:
        """Shared memory for the weights and the map of the current step."""
        return tiles.factored_bytes(tile, self.size, self.gates, self.weights.dtype.itemsize)

    def held_arrivals(self, tile: Tile) -> int:
        """Copies that bring the weights."""
        return self.gates * tile.pairs

    def scratch(self, tile: Tile, depth: int) -> list[Any]:
        shape = (tile.pairs, tile.rows, tile.pitch)
        vectors = (depth, tile.pairs, self.vectors.shape[2], tile.rows)
        return [
            plgpu.SMEM((self.gates, *shape), self.weights.dtype),
            plgpu.SMEM(vectors, jnp.float32),
            plgpu.SMEM((*shape[:2], tiles.pitch_of(self.size, 4)), jnp.float32),
        ]

    def reader(self, tile: Tile, refs, scratch, samples, zero) -> FactoredReader:
        return FactoredReader(self, tile, refs, scratch, samples, zero)


@dataclasses.dataclass(frozen=True)
class FactoredReader:
    """`FactoredMaps` inside a kernel; the attributes are those of `tile_maps.Reader`."""

    shares: ClassVar[bool] = True
    """See `tile_maps.Reader.shares`: here, the map."""

    maps: FactoredMaps
    tile: Tile
    refs: Any
    scratch: Any
    samples: Any
    zero: Any

    def fetch(self, t, slot, barrier) -> None:
        """Starts the copy of what step t needs, or of what a slice of steps does."""
        source = self.refs[0].at[t, self.samples, :, from_zero(self.zero, self.tile.rows)]
        compat.fetch(source, self.scratch[1].at[slot], barrier)

    def fetch_held(self, barrier) -> None:
        """Brings the weights, once per pair, so that a layout of (pair, row, column) reads them."""
        row = from_zero(self.zero, self.tile.rows)
        column = from_zero(self.zero, self.tile.pitch)
        for g in range(self.maps.gates):
            for p in range(self.tile.pairs):
                compat.fetch(self.refs[1].at[g, row, column], self.scratch[0].at[g, p], barrier)
        plgpu.barrier_wait(barrier)

    def at(self, slot) -> tuple[Any, None]:
        """Forms the map of the step in ``slot``, in shared memory.

        In `vector_layout` each thread reads what it has written itself; others have to wait for it.
        """
        weights, vectors, formed = self.scratch
        size, layout = self.maps.size, vector_layout(self.tile.pairs)
        width = tiles.factored_columns(self.tile)
        for start in range(0, size, width):
            shape = (self.tile.pairs, self.tile.rows, min(width, size - start))
            columns = pl.ds(start, shape[2])
            at = [plgpu.broadcasted_iota(jnp.int32, shape, d, layout=layout) for d in (1, 2)]

            def vector(n, columns=columns, shape=shape):
                v = compat.load(vectors.at[slot, :, n, columns], layout.reduce(1))
                return spread(v, shape, (0, 2), layout)

            total: Any = None
            for g in range(self.maps.gates):
                w = compat.load(weights.at[g, :, :, columns], layout).astype(jnp.float32)
                total = w * vector(g) if total is None else total + w * vector(g)
            for k, offset in enumerate(self.maps.offsets):
                on_it = at[1] + (start - offset) == at[0]
                total = total + jnp.where(on_it, vector(self.maps.gates + k), 0.0)
            formed[:, :, columns] = total
        return formed, None
