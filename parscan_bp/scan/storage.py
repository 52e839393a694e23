"""What a derivative stores of a trajectory, and how often a step is made again for it.

A scan of T steps in stretches of n, each under `jax.checkpoint`, stores the carry that enters each
of them, and of one stretch at a time what a derivative of n steps stores. With c bytes of a carry
and s of a step,

    levels   stretches of        bytes                              each step is made again
    0        all                 T s + k(T) + w                     0 times
    1        n                   (T / n) c + n (s + x) + k(n) + 2 w once
    L        n_1 > ... > n_L     sum_i (n_{i-1} / n_i c + n_i x + w)
                                 + n_L s + k(n_L) + w,   n_0 = T    L times

of which x are the inputs of a step and their cotangents, w the cotangents of what all steps share,
and k(n) the linearised steps that a solver has at once, with a vector of each: a chunk, or all of a
tree's. One
level is least for n = sqrt(T c / s); L levels of T^(1 / (L + 1)) steps, and log2(T) of them take
O(log T). None is fastest, as far as was measured. What a caller has as outputs is no part of it.

With ``offload`` the host has the carries of whole outermost stretches, and the device two of them
at a time: T / n does not count, and one level is enough.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence

from parscan_bp.measured import measured
from parscan_bp.memory_limit import MemoryLimit


@dataclasses.dataclass(frozen=True)
class StoredBytes:
    """Bytes that a derivative stores.

    Attributes:
      carry: c, of the carry that enters a stretch.
      step: s, of each step of a stretch.
      x: of its inputs and their cotangents.
      shared: w, of the cotangents of what all steps share.
      solving: k, of so many steps while they are solved for.
    """

    carry: int
    step: int
    x: int
    shared: int
    solving: Callable[[int], int]

    def of(self, length: int, sizes: Sequence[int], offload: bool = False) -> int:
        """The bytes in the table above."""
        total, n = self.shared, length
        for level, size in enumerate(sizes):
            sums = 2 if n % size else 1  # what is left over has sums of its own
            carries = -(-n // size)
            if offload and level == 0:
                carries -= max(0, n // size - 2)
            total += carries * self.carry + size * self.x + sums * self.shared
            n = size
        return total + n * self.step + self.solving(n)


@dataclasses.dataclass(frozen=True)
class Storage:
    """What is stored of a scan.

    Attributes:
      length: its steps.
      costs: bytes that they take.
      sizes: steps of a stretch, from the outermost level in; none where all steps are one.
      offload: whether the outermost carries are the host's, see `MemoryLimit`.
    """

    length: int
    costs: StoredBytes
    sizes: tuple[int, ...] = ()
    offload: bool = False

    @functools.cached_property
    def bytes(self) -> int:
        """How many that takes of the device."""
        return self.costs.of(self.length, self.sizes, self.offload)

    @property
    def host_bytes(self) -> int:
        """How many it takes of the host."""
        return self.length // self.sizes[0] * self.costs.carry if self.is_offloaded else 0

    @property
    def is_offloaded(self) -> bool:
        """Whether there is something that the host keeps."""
        return self.offload and bool(self.sizes)

    @property
    def kept(self) -> str:
        """What that is."""
        if not self.sizes:
            return "what every step has"
        inner = " of ".join(f"{n:,}" for n in self.sizes)
        again = "once" if len(self.sizes) == 1 else f"{len(self.sizes)} times"
        return f"the carry of every stretch of {inner} steps, each step being made again {again}"

    def __str__(self):
        host = f", and {self.host_bytes:,} of the host" if self.is_offloaded else ""
        return f"{self.kept}: about {self.bytes:,} bytes{host}"


def within_limit(length: int, costs: StoredBytes, limit: MemoryLimit) -> Storage:
    """The storage of a scan: of the fewest levels that meet a limit, the longest stretch in cache.

    Args:
      length: steps of the scan.
      costs: bytes that they take.
      limit: what they may take; the longest stretch where the outermost carries are the host's.

    Raises:
      ValueError: if there is none within the limit, with the least that would do.
    """
    least = Storage(length, costs, offload=limit.offload)
    if least.bytes <= limit.bytes:
        return least
    for levels in range(1, max(length.bit_length(), 2)):
        found = [Storage(length, costs, sizes, limit.offload) for sizes in _sizes(length, levels)]
        fits = [one for one in found if one.bytes <= limit.bytes]
        if fits:
            return max(fits, key=lambda one: (_cached(one), -one.bytes))
        least = min([least, *found], key=lambda one: one.bytes)
    raise ValueError(
        f"memory_limit: got {limit.bytes:,} bytes; {least.bytes:,} are the least that a derivative "
        f"of these {length:,} steps takes, which stores {least.kept}"
    )


def whole(length: int, costs: StoredBytes, limit: int) -> Storage:
    """The storage of steps that are not taken apart, as those of a device among several.

    Raises:
      ValueError: if they take more than the limit.
    """
    found = Storage(length, costs)
    if found.bytes > limit:
        raise ValueError(
            f"memory_limit: got {limit:,} bytes; a derivative of {length:,} steps takes "
            f"{found.bytes:,}, and by this solver they are not made again stretch by stretch"
        )
    return found


def _cached(storage: Storage) -> int:
    """Bytes of the innermost stretch, but no more than are faster to reach."""
    if storage.offload:
        return storage.sizes[0]  # the fewest copies
    return min(storage.sizes[-1] * storage.costs.step, measured("cpu")["storage"]["stretch"])


def _sizes(length: int, levels: int) -> Iterator[tuple[int, ...]]:
    """Stretches of so many levels, each of about the same number of those in it."""
    inner = 2
    while inner < length:
        ratio = (length / inner) ** (1 / levels)
        sizes, n = [], length
        for k in range(1, levels + 1):
            n = _even(n, max(inner, round(inner * ratio ** (levels - k))))
            sizes.append(n)
        if all(a > b for a, b in zip([length, *sizes], sizes, strict=False)):
            yield tuple(sizes)
        inner *= 2


def _even(length: int, size: int) -> int:
    """About so many steps, two at least, of which there are none or few left over."""
    size = min(size, length)
    exact = [n for n in _divisors(length) if max(2, 3 * size // 4) <= n <= size]
    return max(exact) if exact else max(2, length // math.ceil(length / size))


@functools.lru_cache
def _divisors(length: int) -> tuple[int, ...]:
    small = [n for n in range(1, math.isqrt(length) + 1) if length % n == 0]
    return tuple({*small, *(length // n for n in small)})
