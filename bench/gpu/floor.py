"""What the solve must take at least: bytes over bandwidth, operations over rate, launches.

The parallel solve of lambda_t = g_t + A_{t+1} lambda_{t+1} composes the maps of each chunk,
goes through the chunks with a vector and sweeps every chunk again. For T steps of B samples of
order H, float32:

    operations  T B (2 H^2 (H + 1) + 2 H^2)       composing [A b], then the sweep
    bytes       4 T B (2 F + 3 H)                 the factors F and g twice, lambda once
    floor       3 launches + max(bytes / bandwidth, operations / rate)

with F = H^2 numbers where A_t is a matrix in memory, and F = H where A_t = W diag(d_t). The
formula was fixed before anything was measured; bandwidth and rate are measured, a launch is
taken as 5 us. A solve of one launch, or one whose data stay in the second-level cache, may be
faster than this floor.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from bench.shared import timing

LAUNCHES, LAUNCH_SECONDS = 3, 5e-6
_WORD = 4


@dataclasses.dataclass(frozen=True)
class System:
    """The sizes of a bi-diagonal system; `weighted` says that A_t is W diag(d_t)."""

    length: int
    batch: int
    size: int
    weighted: bool

    @property
    def factors(self) -> int:
        """Numbers of one A_t in memory."""
        return self.size if self.weighted else self.size**2


@dataclasses.dataclass(frozen=True)
class Peaks:
    """What the device reaches: a copy, bytes read and written; a float32 product without TF32."""

    bytes_per_second: float
    flops_per_second: float


@dataclasses.dataclass(frozen=True)
class Phase:
    """One launch: what it must move and compute, padding not counted."""

    name: str
    bytes: int
    flops: int

    def seconds(self, peaks: Peaks) -> float:
        """The least time, the launch included."""
        return LAUNCH_SECONDS + _busy(self.bytes, self.flops, peaks)


def flops(system: System) -> int:
    """T B (2 H^2 (H + 1) + 2 H^2)."""
    size = system.size
    return system.length * system.batch * (2 * size**2 * (size + 1) + 2 * size**2)


def moved_bytes(system: System) -> int:
    """4 T B (2 F + 3 H)."""
    return _WORD * system.length * system.batch * (2 * system.factors + 3 * system.size)


def seconds(system: System, peaks: Peaks) -> float:
    """The floor."""
    return LAUNCHES * LAUNCH_SECONDS + _busy(moved_bytes(system), flops(system), peaks)


def phases(system: System, radices: Sequence[int]) -> list[Phase]:
    """The launches of the kernels with these steps per chunk on each level, in their order."""
    length, batch, size = system.length, system.batch, system.size
    steps, vector = length * batch, 2 * size**2
    if not radices or length <= radices[0]:
        words = steps * (system.factors + 2 * size) + batch * size
        return [Phase("sweep", _WORD * words, steps * vector)]
    chunk, *rest = radices
    count = -(-length // chunk)
    maps = count * batch * size * (size + 1)
    down = steps * (system.factors + 2 * size) + count * batch * size
    return [
        Phase(
            "reduce",
            _WORD * (steps * (system.factors + size) + maps),
            (steps - count * batch) * vector * (size + 1),
        ),
        *phases(System(count, batch, size, weighted=False), rest),
        Phase("sweep", _WORD * down, steps * vector),
    ]


def measured_peaks(numbers: int, order: int, calls: int = 10) -> Peaks:
    """Bandwidth from an elementwise pass over an array, rate from a product of matrices.

    Args:
        numbers: entries of the array, float32: many times the caches.
        order: of the matrices.
        calls: timed passes, the fastest counts.
    """
    array = jnp.ones(numbers, jnp.float32)
    matrix = jax.random.normal(jax.random.key(0), (order, order), jnp.float32)
    copy = jax.jit(lambda x: x + 1)
    product = jax.jit(lambda a: jnp.matmul(a, a, precision="highest"))
    return Peaks(
        bytes_per_second=2 * _WORD * numbers / _fastest(copy, array, calls),
        flops_per_second=2 * order**3 / _fastest(product, matrix, calls),
    )


def _fastest(function, argument, calls: int) -> float:
    return min(timing.queued(lambda: function(argument), 4) for _ in range(calls + 1))


def _busy(moved: int, operations: int, peaks: Peaks) -> float:
    return max(moved / peaks.bytes_per_second, operations / peaks.flops_per_second)
