"""Memory of the device, and the copies that run beside a block's threads."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from tests.kernels.ptx.memory import START, SharedMemory


@dataclasses.dataclass(frozen=True)
class Descriptor:
    """What a copy of boxes moves: an array, and the box's size along each of its axes."""

    array: np.ndarray
    box: tuple[int, ...]


@dataclasses.dataclass
class Mbarrier:
    """A phase ends when all have arrived, and all bytes that they expect.

    Attributes:
      count: arrivals of a phase.
      pending: of them, those to come.
      bytes: those to come.
      phase: its parity.
      began_in: which interval between barriers of all threads.
    """

    began_in: int
    count: int
    pending: int
    bytes: int = 0
    phase: int = 0


class Copies:
    """A copy is made when it starts; that it could be later is a matter of `SharedMemory`."""

    def __init__(
        self,
        shared: SharedMemory,
        pointers: Sequence[np.ndarray],
        descriptors: Sequence[Descriptor],
    ) -> None:
        self.shared, self.pointers, self.descriptors = shared, pointers, descriptors
        self.mbarriers: dict[int, Mbarrier] = {}
        self._groups: list[list[np.ndarray]] = []
        self._open: list[np.ndarray] = []

    # Memory by address

    def address_of(self, number: int) -> int:
        return (1 << 40) + (number << 36)

    def _find(self, address: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """An array's bytes, and where in them the addresses are."""
        for number, array in enumerate(self.pointers):
            offset = address - self.address_of(number)
            if (offset >= 0).all() and (offset + count <= array.nbytes).all():
                return array.reshape(-1).view(np.uint8), offset
        raise IndexError(f"outside of all arrays: {self.shared.instruction}")

    def read(self, address: np.ndarray, count: int) -> np.ndarray:
        flat, offset = self._find(address, count)
        return flat[offset[:, None] + np.arange(count)]

    def write(self, address: np.ndarray, words: np.ndarray) -> None:
        flat, offset = self._find(address, 4 * words.shape[1])
        flat.view(np.uint32)[offset[:, None] // 4 + np.arange(words.shape[1])] = words

    # mbarriers

    def create(self, mbarrier: int, count: int) -> None:
        self.mbarriers[mbarrier] = Mbarrier(self.shared.interval, count, count)

    def arrive(self, mbarrier: int, threads: int, expected: int) -> None:
        found = self.mbarriers[mbarrier]
        self.shared.used(found.began_in)
        assert found.pending >= threads, f"too many arrive: {self.shared.instruction}"
        found.pending -= threads
        self._moved(found, expected)

    def _moved(self, mbarrier: Mbarrier, expected: int) -> None:
        mbarrier.bytes += expected
        if mbarrier.pending == mbarrier.bytes == 0:
            mbarrier.phase ^= 1
            mbarrier.pending = mbarrier.count

    def wait(self, mbarrier: int, parity: int) -> None:
        """Until the phase of this parity has ended."""
        ended = self.mbarriers[mbarrier].phase != parity
        assert ended, f"never ends: {self.shared.instruction}"
        self.shared.arrived(mbarrier)

    # Boxes and runs

    def box_in(self, number: int, starts: list[int], shared: int, mbarrier: int) -> None:
        """What is outside of the array arrives as zeros."""
        flat, inside, part = self._box(number, starts)
        box = np.zeros(self._sizes(number), flat.dtype)
        box[part] = flat[inside]
        raw = np.frombuffer(box.tobytes(), np.uint32)
        assert (shared - START) % 128 == 0, self.shared.instruction
        self.shared.copy_in((shared - START) // 4 + np.arange(len(raw)), raw, mbarrier)
        self._moved(self.mbarriers[mbarrier], -4 * len(raw))

    def box_out(self, number: int, starts: list[int], shared: int) -> None:
        flat, inside, part = self._box(number, starts)
        sizes = self._sizes(number)
        raw = self._leave(shared, int(np.prod(sizes)) * flat.itemsize)
        flat[inside] = raw.view(flat.dtype).reshape(sizes)[part]

    def run_out(self, address: int, shared: int, size: int) -> None:
        """So many bytes in one piece."""
        assert size % 16 == 0, self.shared.instruction
        raw = self._leave(shared, size)
        if size:
            flat, offset = self._find(np.array([address]), size)
            assert offset[0] % 16 == 0, self.shared.instruction
            flat[offset[0] : offset[0] + size] = raw.view(np.uint8)

    def end_group(self) -> None:
        self._groups.append(self._open)
        self._open = []

    def wait_groups(self, most: int) -> None:
        """Until no more than so many groups of copies out may still read."""
        while len(self._groups) > most:
            for at in self._groups.pop(0):
                self.shared.left(at)

    def _leave(self, shared: int, size: int) -> np.ndarray:
        assert (shared - START) % 16 == 0, self.shared.instruction
        at = (shared - START) // 4 + np.arange(size // 4)
        self._open.append(at)
        return self.shared.copy_out(at)

    def _sizes(self, number: int) -> list[int]:
        """Of a box; axes of one entry that are copied as such are not there."""
        found = self.descriptors[number]
        axes = zip(found.array.shape, found.box, strict=True)
        return [part for size, part in axes if not size == part == 1]

    def _box(self, number: int, starts: list[int]):
        """The array, what of it is inside of the box, and which part of the box that is."""
        array, sizes = self.descriptors[number].array, self._sizes(number)
        axes = zip(array.shape, self.descriptors[number].box, strict=True)
        flat = array.reshape([size for size, part in axes if not size == part == 1])
        assert len(starts) == len(sizes) == flat.ndim, (self.shared.instruction, flat.shape)
        assert min(starts) >= 0
        room = [max(0, size - start) for size, start in zip(flat.shape, starts, strict=True)]
        lengths = list(map(min, sizes, room))
        inside = tuple(slice(s, s + n) for s, n in zip(starts, lengths, strict=True))
        return flat, inside, tuple(slice(n) for n in lengths)
