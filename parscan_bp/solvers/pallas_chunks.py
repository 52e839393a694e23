"""How many steps a chunk of the GPU kernels has, by the rates of the GPU."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

from parscan_bp import kernels
from parscan_bp.solvers.gpu_rates import GpuRates, rates_here

Kernel = Literal["diagonal", "lanes", "tiles", "columns"]


@dataclasses.dataclass(frozen=True)
class Reduction:
    """How chunks of steps become one map each.

    Attributes:
      kernel: of `parscan_bp.kernels`; "diagonal" for that of elementwise maps.
      products: multiply-adds of a step for one pair (chunk, sample).
    """

    kernel: Kernel
    products: int


DIAGONAL = Reduction("diagonal", 1)


def reduction_of_matrices(order: int) -> Reduction:
    """Of matrices."""
    kernel: Kernel = "lanes" if order <= kernels.MAX_LANES_SIZE else "tiles"
    return Reduction(kernel, order**2 * (order + 1))


def reduction_of_cell(units: int, states: int = 1, gates: int = 1) -> Reduction:
    """Of a cell's factors, for a state of groups of units; W diag(d) has one gate and one group."""
    order = states * units
    if kernels.columns_fit(units, states, gates):
        return Reduction("columns", gates * units**2 * (order + 1))
    return Reduction("tiles", order**2 * (order + 1))


def chunked_ns(reduction: Reduction, length: int, batch: int, chunk: int, rates: GpuRates) -> float:
    """Predicted nanoseconds of three kernels for chunks of C steps.

    C reducing(B T / C pairs) + (T / C) vector + C vector + 3 launches
    """
    count = -(-length // chunk)
    if reduction == DIAGONAL:
        step = rates.vector
    else:
        step = rates.reducing(reduction.kernel, reduction.products, count * batch)
    return chunk * step + (count + chunk) * rates.vector + 3 * rates.launch


def chunk_of(reduction: Reduction, length: int, batch: int, rates: GpuRates | None = None) -> int:
    """Steps per chunk for which `chunked_ns` is least, of multiples of four.

    Four steps are read at once by the kernels for small maps.

    Args:
      reduction: how chunks are reduced.
      length: T.
      batch: B, samples or elementwise maps.
      rates: of the GPU; ``None`` for `rates_here`.
    """
    rates = rates_here() if rates is None else rates
    chunks = range(4, max(8, 4 * math.isqrt(length)), 4)
    return min(chunks, key=lambda c: chunked_ns(reduction, length, batch, c, rates))


def radices_of(
    reduction: Reduction, length: int, batch: int, rates: GpuRates | None = None
) -> list[int]:
    """Steps per chunk on each level where the caller named neither chunk nor mode.

    None where one kernel that goes through all steps is as fast.

    Args:
      reduction, length, batch, rates: see `chunk_of`.
    """
    rates = rates_here() if rates is None else rates
    if reduction == DIAGONAL and batch >= rates.full_lanes:
        return []
    chunk = chunk_of(reduction, length, batch, rates)
    chunked = chunked_ns(reduction, length, batch, chunk, rates)
    return [chunk] if chunked < length * rates.vector + rates.launch else []
