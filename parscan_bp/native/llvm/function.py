"""A whole loop as one native function."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import llvmlite.ir as ir
from jax.extend.core import Var

from parscan_bp.native.llvm import threads
from parscan_bp.native.llvm.elementwise import FUNCTIONS
from parscan_bp.native.llvm.handler import buffers, handler, succeed
from parscan_bp.native.llvm.memory import Carries, Scratch, place_of, placed
from parscan_bp.native.llvm.product import Blocks
from parscan_bp.native.llvm.values import nest
from parscan_bp.native.llvm.vectors import I8, NUMBERS, Code, MemoryRows
from parscan_bp.native.program import (
    JoinedParts,
    Loop,
    MatrixProduct,
    Program,
    rows_and_columns,
    type_of,
)

NAME = "handler"
Stores = Sequence[tuple[Any, MemoryRows]]
"""Values, each with a place that it is written to."""


def function_of(loop: Loop, lanes: int) -> tuple[str, int]:
    """LLVM's text of a loop, and the numbers of scratch memory that it wants.

    The function is that of `NAME`. Its arguments are the loop's, and its results have one more, the
    scratch memory.
    """
    module, program = ir.Module(), Program(loop, FUNCTIONS)
    count = threads.threads_for(program)
    builder, frame = handler(module, NAME)
    packed, scratch = _pack(_Buffers(builder, frame, loop, lanes), program, count)
    inside, given, number = threads.part(module, f"{NAME}_part")
    _Steps(_Buffers(inside, given, loop, lanes), program, packed, scratch, number, count).append()
    threads.run(builder, inside.function, frame, count)
    succeed(builder)
    return str(module), scratch.size


class _Buffers:
    """Pointers to what XLA calls a function with.

    Args:
      builder: of the function.
      frame: of XLA's call.
      loop: the loop.
      lanes: see `Code`.

    Attributes:
      code: appends to the function.
      loop: the loop.
      inputs, results: of the loop; the last result is the scratch memory.
    """

    def __init__(self, builder: ir.IRBuilder, frame: Any, loop: Loop, lanes: int):
        number, invars = NUMBERS[loop.dtype], loop.jaxpr.invars
        self.code, self.loop = Code(builder, loop.dtype, lanes), loop
        number_of = lambda v: I8 if type_of(v) == "bool" else number  # noqa: E731
        self.inputs = buffers(builder, frame, list(map(number_of, invars)), results=False)
        outs = [*map(number_of, loop.jaxpr.outvars), number]
        self.results = buffers(builder, frame, outs, results=True)


_Packed = Mapping[Var, tuple[MatrixProduct, Blocks, MemoryRows]]
"""Of each product: how it is taken apart, and where its matrix is in panels."""


def _pack(of: _Buffers, program: Program, count: int) -> tuple[_Packed, Scratch]:
    """Packs the matrices of all products, for so many threads."""
    loop, scratch, packed = of.loop, Scratch(), {}
    pointers = dict(zip(loop.jaxpr.invars, of.inputs, strict=True))
    for product in program.products:
        rows, summed = rows_and_columns(product.left)
        columns = rows_and_columns(product.out)[1]
        blocks = Blocks.of(rows // count, summed, columns, of.code.lanes)
        panels = scratch.take(1, blocks.packed)
        matrix = place_of(product.matrix, pointers[product.matrix])
        blocks.pack(of.code, matrix, panels.on(of.results[-1]), turned=product.turned)
        packed[product.out] = product, blocks, panels
    return packed, scratch


class _Steps:
    """All steps of a thread's rows, as they are appended to its function.

    Args:
      of: what the function is called with.
      program: a step.
      packed: the matrices.
      scratch: memory.
      number, count: of this thread, and of all.
    """

    def __init__(
        self,
        of: _Buffers,
        program: Program,
        packed: _Packed,
        scratch: Scratch,
        number: Any,
        count: int,
    ):
        loop, base = of.loop, of.results[-1]
        self._code, self._loop, self._program = of.code, loop, program
        self._number, self._count = number, count
        inputs, begin = loop.jaxpr.invars, loop.shared + loop.carry
        self._shared = {
            v: self._own(place_of(v, p))
            for v, p in zip(inputs[: loop.shared], of.inputs, strict=False)
        }
        self._stacked = [
            *zip(loop.xs, of.inputs[begin:], strict=True),
            *zip(loop.ys, of.results[loop.carry : -1], strict=True),
        ]
        self._products = {
            out: (product, blocks, panels.on(base))
            for out, (product, blocks, panels) in packed.items()
        }
        self._carries = Carries(loop, program, scratch)
        self._first = self._carries.first(of.code, of.inputs[loop.shared : begin], base)
        self._last = of.results[: loop.carry]
        outs = set(filter(lambda v: isinstance(v, Var), loop.jaxpr.outvars))
        self._kept = {
            v: self._own(self._in_scratch(v, scratch.take(*rows_and_columns(v)), base))
            for v in program.stored
            if v not in outs
        }

    def append(self) -> None:
        """Appends all steps, and the end of the function."""
        code, loop = self._code, self._loop
        last = code.loop(loop.length, self._first, self._step)
        for v, pointer, result in zip(loop.carries, last, self._last, strict=False):
            there = {v: self._own(place_of(v, pointer))}
            to = self._own(place_of(v, result))
            nest(code, self._program, there, [(v, to)], level=0, flat=True)
        succeed(code.builder)

    def _in_scratch(self, v: Var, place: MemoryRows, base: Any) -> MemoryRows:
        """The place of a value; bools are bytes at the beginning of what numbers would take."""
        if type_of(v) != "bool":
            return place.on(base)
        base = self._code.builder.bitcast(base, I8.as_pointer())
        return place_of(v, base, place.start * self._code.align)

    def _own(self, place: MemoryRows) -> MemoryRows:
        """The rows of this thread."""
        if self._count == 1 or place.rows != self._program.batch:
            return place
        rows = place.rows // self._count
        first = self._code.times(self._number, rows * place.stride)
        return dataclasses.replace(place, start=(place.start, first), rows=rows)

    def _step(self, k: Any, pointers: Sequence[Any]) -> list[Any]:
        """Appends one step; pointers to the carries, and those after it."""
        code, loop = self._code, self._loop
        t = code.difference(loop.length - 1, k) if loop.reverse else k
        rows = [place_of(v, p, code.times(t, place_of(v, p).size)) for v, p in self._stacked]
        own = list(map(self._own, rows))
        xs, ys = own[: len(loop.xs)], own[len(loop.xs) :]
        entering = self._carries.entering(pointers)
        places = {**self._shared, **{v: self._own(p) for v, p in entering.items()}, **self._kept}
        places.update(zip(loop.xs, xs, strict=True))
        wanted = [(v, self._own(place)) for v, place in self._carries.wanted(pointers)]
        made, copied = placed([*zip(loop.ys, ys, strict=True), *wanted], places)
        self._levels({**places, **made}, copied)
        return self._carries.next(code, pointers, rows[len(loop.xs) :])

    def _levels(self, places: Mapping[Var, MemoryRows], copied: Stores) -> None:
        """What a step does, level by level."""
        stores = [*copied]
        for v in self._program.stored:
            made = self._program.made[v]
            if isinstance(made, JoinedParts):
                for row, column, rows, columns, part in made.parts:
                    rows = min(rows, places[v].rows)  # of a thread's own, all are parts
                    stores.append((part, places[v].part(row, column, rows, columns)))
            elif not isinstance(made, MatrixProduct):
                stores.append((v, places[v]))
        for level in range(self._program.levels):
            for product, blocks, panels in self._products.values():
                if self._program.level_of(product.out) == level:
                    blocks.multiply(self._code, places[product.left], panels, places[product.out])
            here = [s for s in stores if self._program.level_of(s[0]) == level]
            self._nests(places, here, level)

    def _nests(self, places: Mapping[Var, MemoryRows], stores: Stores, level: int) -> None:
        """Values of one shape are made in one nest of loops."""
        groups: dict[Any, list[tuple[Any, MemoryRows]]] = {}
        for atom, place in stores:
            flat = place.is_contiguous and self._program.is_flat(atom, level)
            size = (1, place.size) if flat else (place.rows, place.columns)
            groups.setdefault((flat, size), []).append((atom, place))
        for (flat, _), group in groups.items():
            nest(self._code, self._program, places, group, level=level, flat=flat)
