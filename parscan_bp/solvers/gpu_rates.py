"""How fast a GPU does what the kernels are made of."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax

from parscan_bp.measured import measured

DEFAULT = "NVIDIA H100 80GB HBM3"
"""The GPU that those of which nothing is known are taken to be like."""


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

    def reducing(self, kernel: str, products: int, pairs: int) -> float:
        """Nanoseconds of a step of so many pairs at once, of so many products each."""
        rate = self.reduce[kernel]
        turns = -(-pairs // (rate.least * self.multiprocessors))
        return rate.ns * products / rate.products * rate.least * turns


@functools.cache
def gpu_rates(kind: str) -> GpuRates:
    """The rates of a GPU by its `jax.Device.device_kind`, or else those of `DEFAULT`.

    ``choice/data/gpu.json`` says of each number where it comes from.

    Example:
      >>> gpu_rates("NVIDIA H100 80GB HBM3").multiprocessors
      132
    """
    known = measured("gpu")
    held = known.get(kind, known[DEFAULT])
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
