"""How a kernel's body uses its arrays: what its compiled parameters stand for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from parscan_bp.kernels import compat
from tests.kernels.ptx.copies import Descriptor


class Uses:
    """Kernels have a parameter for each array used by address, in the order of its first use, and
    one for all descriptors of copies, in that of theirs.

    Attributes:
      pointers: numbers of arrays.
      boxes: (number of an array, box) of every descriptor.
    """

    def __init__(self) -> None:
        self.pointers: list[int] = []
        self.boxes: list[tuple[int, tuple[int, ...]]] = []

    def recorded(self, body: Callable, inputs: int, outputs: int) -> Callable:
        """The body, which tells of its first ``inputs + outputs`` references."""

        def run(*refs: Any) -> None:
            arrays, rest = refs[: inputs + outputs], refs[inputs + outputs :]
            told = [Told(ref, k, k >= inputs, self) for k, ref in enumerate(arrays)]
            body(*told, *rest)

        return run

    def by_address(self, number: int) -> None:
        if number not in self.pointers:
            self.pointers.append(number)

    def by_box(self, number: int, box: tuple[int, ...]) -> None:
        if (number, box) not in self.boxes:
            self.boxes.append((number, box))

    def arguments(self, arrays: Sequence[np.ndarray]) -> tuple[list[np.ndarray], list[Descriptor]]:
        """Of a `Block`."""
        descriptors = [Descriptor(arrays[number], box) for number, box in self.boxes]
        return [arrays[number] for number in self.pointers], descriptors


class Told:
    """A reference to an array of the device, which tells of its uses."""

    def __init__(self, ref: Any, number: int, is_output: bool, uses: Uses) -> None:
        self._ref, self._number, self._is_output, self._uses = ref, number, is_output, uses
        self.shape, self.dtype = ref.shape, ref.dtype

    @property
    def at(self) -> Told:
        return _At(self._ref, self._number, self._is_output, self._uses)

    def whole(self) -> Any:
        """The reference, of which everything is copied."""
        self._uses.by_box(self._number, tuple(self.shape))
        return self._ref

    def __getitem__(self, index: Any) -> Any:
        self._uses.by_address(self._number)
        return self._ref[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self._uses.by_address(self._number)
        self._ref[index] = value


class _At(Told):
    """For copies of boxes; those to memory that is contiguous are by address."""

    def __getitem__(self, index: Any) -> Any:
        box = tuple(map(_extent, index, self.shape))
        if self._is_output and compat.is_contiguous(self.shape, box):
            self._uses.by_address(self._number)
        else:
            self._uses.by_box(self._number, box)
        return self._ref.at[index]


def _extent(index: Any, size: int) -> int:
    if index == slice(None):
        return size
    return int(getattr(index, "size", 1)) if hasattr(index, "start") else 1
