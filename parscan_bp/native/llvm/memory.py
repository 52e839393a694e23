"""Where a loop's values are in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jax.extend.core import Literal, Var

from parscan_bp.native.llvm.vectors import Code, MemoryRows
from parscan_bp.native.program import Loop, Program, rows_and_columns, type_of

ALIGNED = 16
"""Numbers to which what is in the scratch memory is aligned."""


class Scratch:
    """Memory for what is no result; every part is given out once, and has no base yet.

    Attributes:
      size: numbers that have been given out.
    """

    def __init__(self) -> None:
        self.size = 0

    def take(self, rows: int, columns: int) -> MemoryRows:
        start = self.size
        self.size += -(-rows * columns // ALIGNED) * ALIGNED
        return MemoryRows(None, start, rows, columns, columns)


def place_of(v: Var, base: Any, start: Any = 0) -> MemoryRows:
    """Where a value is."""
    rows, columns = rows_and_columns(v)
    return MemoryRows(base, start, rows, columns, columns, type_of(v) == "bool")


class Carries:
    """Where the carries are, from step to step.

    One that is a stacked result, too, is read from that; the others have two places each, of which
    one is read and the other one written, by turns. So a loop goes on with pointers: those to the
    carries, and then to the two places of each of these.

    Args:
      loop: the loop.
      program: its step.
      scratch: where the places are.
    """

    def __init__(self, loop: Loop, program: Program, scratch: Scratch):
        self._loop = loop
        self._rows = [_row_of(v, loop, program) for v in loop.leaving]
        self._own = [k for k, row in enumerate(self._rows) if row is None]
        sizes = [rows_and_columns(loop.carries[k]) for k in self._own]
        self._places = [scratch.take(*size) for size in sizes for _ in range(2)]

    def first(self, code: Code, init: Sequence[Any], scratch: Any) -> list[Any]:
        """The pointers before the first step, of the scratch memory at a pointer."""
        return [*init, *(code.pointer(scratch, place.start) for place in self._places)]

    def entering(self, pointers: Sequence[Any]) -> dict[Var, MemoryRows]:
        """Where the carries are when a step begins."""
        return {v: place_of(v, p) for v, p in zip(self._loop.carries, pointers, strict=False)}

    def wanted(self, pointers: Sequence[Any]) -> list[tuple[Any, MemoryRows]]:
        """The new carries that are no stacked results, and where they are to be."""
        spare = pointers[self._loop.carry :: 2]
        return [
            (self._loop.leaving[k], place_of(self._loop.carries[k], then))
            for k, then in zip(self._own, spare, strict=True)
        ]

    def next(self, code: Code, pointers: Sequence[Any], ys: Sequence[MemoryRows]) -> list[Any]:
        """The pointers after a step whose stacked results are in these places."""
        spare = pointers[self._loop.carry :]
        written = dict(zip(self._own, spare[::2], strict=True))
        carries = [
            written[k] if row is None else code.pointer(ys[row].base, ys[row].start)
            for k, row in enumerate(self._rows)
        ]
        turned = [p for pair in zip(spare[1::2], spare[::2], strict=True) for p in pair]
        return [*carries, *turned]


def _row_of(atom: Any, loop: Loop, program: Program) -> int | None:
    """Which stacked result a new carry is, if it is one and is made by the step."""
    if isinstance(atom, Literal) or atom in program.inputs:
        return None
    return next((k for k, y in enumerate(loop.ys) if y is atom), None)


def placed(
    wanted: Sequence[tuple[Any, MemoryRows]], places: Mapping[Var, MemoryRows]
) -> tuple[dict[Var, MemoryRows], list[tuple[Any, MemoryRows]]]:
    """Results: those that are made where they are wanted, and others that are copied to it.

    Args:
      wanted: the results, each with where it is to be.
      places: of what is in memory before it.
    """
    made: dict[Var, MemoryRows] = {}
    copied: list[tuple[Any, MemoryRows]] = []
    for atom, place in wanted:
        if isinstance(atom, Literal) or atom in places or atom in made:
            copied.append((atom, place))
        else:
            made[atom] = place
    return made, copied
