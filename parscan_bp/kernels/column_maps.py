"""The maps of a cell as `column_reduce` takes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from parscan_bp.kernels.column_reduce import column_reduce
from parscan_bp.kernels.padding import folding, pad_axis
from parscan_bp.kernels.tiles import columns_fit


@dataclasses.dataclass(frozen=True)
class ColumnMaps:
    """The factors of A_t, see `column_reduce`, with samples where the tile kernels have them.

    Attributes:
      w: (G, H, H), float32 or bfloat16; the same for all steps.
      gates: (T, B, G, S, H).
      direct: (T, B, S, S, H), or ``None``.
    """

    w: Any
    gates: Any
    direct: Any = None

    @property
    def fit(self) -> bool:
        """Whether the kernel takes them."""
        *_, gates, states, size = self.gates.shape
        return columns_fit(size, states, gates)

    def map_steps(self, f: Callable) -> ColumnMaps:
        """With ``f`` applied to what has an entry per step."""
        direct = None if self.direct is None else f(self.direct)
        return ColumnMaps(self.w, f(self.gates), direct)

    def reduce(self, b, chunk: int, **how: Any) -> tuple[Any, Any]:
        """M (T / chunk, B, n, n) and v (T / chunk, B, n) of every chunk.

        Args:
          b: (T, B, n), the groups of units padded alike.
          chunk, how: see `column_reduce`.
        """
        length, batch, order = b.shape
        *_, states, size = self.gates.shape
        extra = order // states - size
        b = b.reshape(length, batch, states, size + extra)[..., :size]
        fold, unfold = folding(jnp.moveaxis(b, 1, -1), chunk)
        gates, direct, b = (
            None if x is None else fold(jnp.moveaxis(x, 1, -1))
            for x in (self.gates, self.direct, b)
        )
        w = self.w.astype(jnp.float32)
        x = column_reduce(w, gates, direct, b, chunk=chunk, **how)
        # Whole, then divided: of a slice that is one piece of memory XLA makes a copy that no graph
        # of kernels holds.
        x = jnp.moveaxis(unfold(x, 1), -1, 1)
        m, v = x[..., :-1], x[..., -1]
        m = m.reshape(-1, batch, states, size, states, size)
        m = pad_axis(pad_axis(m, 3, extra), 5, extra)
        v = pad_axis(v.reshape(-1, batch, states, size), 3, extra)
        return m.reshape(-1, batch, order, order), v.reshape(-1, batch, order)
