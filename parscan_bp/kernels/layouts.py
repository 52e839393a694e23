"""Register layouts of (pair, row, column) arrays for the tile kernels.

A warp holds 8 rows by 4 (or, with two pairs per warp, 4 by 4) lanes; a lane holds ``vector``
neighbouring columns. Four warps divide the pairs, or the rows of a single pair.
"""

from __future__ import annotations

import functools
from typing import Any

from jax import lax

from parscan_bp.kernels import compat


@functools.cache
def matrix_layout(pairs: int) -> Any:
    """For products of matrices: four columns per lane, read as one 16-byte word."""
    return _layout(pairs, 16, 4)


@functools.cache
def vector_layout(pairs: int) -> Any:
    """For products with a vector: one column per lane, so any multiple of four columns."""
    return _layout(pairs, 4, 1)


@functools.cache
def fused_layout(apart: bool) -> Any:
    """For products with a vector, of a `FusedTile`; samples that are apart have a row to a lane."""
    if not apart:
        return vector_layout(1)
    return compat.tiled_layout((4, 32, 4), warp=(-3,), lane=(-2,))


def _layout(pairs: int, width: int, vector: int) -> Any:
    if pairs == 8:
        first, second, third = (8, 4, width), (2, 4, width), (1, 1, vector)
        return compat.tiled_layout(first, second, third, warp=(-9,), lane=(-6, -5, -4))
    warp, first = ((-8,), (4, 8, width)) if pairs == 4 else ((-7,), (1, 32, width))
    return compat.tiled_layout(first, (1, 8, width), (1, vector), warp=warp, lane=(-4, -3))


def spread(x: Any, shape: tuple[int, ...], axes: tuple[int, ...], layout: Any) -> Any:
    """``x`` repeated over the axes of ``shape`` that are not in ``axes``."""
    return compat.plgpu.layout_cast(lax.broadcast_in_dim(x, shape, axes), layout)
