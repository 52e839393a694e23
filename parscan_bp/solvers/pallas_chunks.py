"""How many steps a chunk of the GPU kernels has, by the rates of the GPU."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Mapping
from importlib import resources
from typing import Any, Literal

import jax

from parscan_bp import kernels

DEFAULT = "NVIDIA H100 80GB HBM3"
"""The GPU that those of which nothing is known are taken to be like."""


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


@dataclasses.dataclass(frozen=True)
class ReduceRate:
    """How fast a kernel reduces chunks.

    Attributes:
      ns: nanoseconds of a multiprocessor for a step of a pair (chunk, sample).
      products: multiply-adds of that step; the time grows with them.
      least: pairs for which a multiprocessor takes no longer than for one.
    """

    ns: float
    products: int
    least: int


@dataclasses.dataclass(frozen=True)
class GpuRates:
    """What is known of a GPU, in nanoseconds.

    Attributes:
      multiprocessors: how many it has.
      launch: of a kernel.
      vector: of a step that a vector goes through.
      full_lanes: elementwise maps that fill the GPU by themselves.
      reduce: by the kernel that reduces chunks.
    """

    multiprocessors: int
    launch: float
    vector: float
    full_lanes: int
    reduce: Mapping[str, ReduceRate]

    def reducing(self, reduction: Reduction, pairs: int) -> float:
        """Nanoseconds of a step of so many pairs at once."""
        if reduction == DIAGONAL:
            return self.vector
        rate = self.reduce[reduction.kernel]
        turns = -(-pairs // (rate.least * self.multiprocessors))
        return rate.ns * reduction.products / rate.products * rate.least * turns


@functools.lru_cache
def gpu_rates(kind: str) -> GpuRates:
    """The rates of a GPU by its `jax.Device.device_kind`, or else those of `DEFAULT`.

    ``choice/data/gpu.json`` says of each number where it comes from.

    Example:
      >>> gpu_rates("NVIDIA H100 80GB HBM3").multiprocessors
      132
    """
    known = json.loads(resources.files("parscan_bp").joinpath("choice/data/gpu.json").read_text())
    held: dict[str, Any] = known.get(kind, known[DEFAULT])
    return GpuRates(
        multiprocessors=held["multiprocessors"],
        launch=held["launch"]["ns"],
        vector=held["vector"]["ns"],
        full_lanes=held["full_lanes"]["count"],
        reduce={name: ReduceRate(**_numbers(one)) for name, one in held["reduce"].items()},
    )


def _numbers(held: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in held.items() if name != "from"}


def rates_here() -> GpuRates:
    """Those of this process's first device."""
    return gpu_rates(jax.devices()[0].device_kind)


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
    reduced = chunk * rates.reducing(reduction, count * batch)
    return reduced + (count + chunk) * rates.vector + 3 * rates.launch


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
