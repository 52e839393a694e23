"""A whole loop as one native function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import llvmlite.ir as ir
from jax.extend.core import Var

from parscan_bp.native.llvm.elementwise import FUNCTIONS
from parscan_bp.native.llvm.handler import buffers, handler, succeed
from parscan_bp.native.llvm.memory import Carries, Scratch, place_of, placed
from parscan_bp.native.llvm.product import Blocks
from parscan_bp.native.llvm.values import nest
from parscan_bp.native.llvm.vectors import I8, NUMBERS, Code, Place
from parscan_bp.native.program import Joined, Loop, Product, Program, rows_and_columns, type_of

NAME = "handler"
Stores = Sequence[tuple[Any, Place]]
"""Values, each with a place that it is written to."""


def function_of(loop: Loop, lanes: int) -> tuple[str, int]:
    """LLVM's text of a loop, and the numbers of scratch memory that it wants.

    The function is that of `NAME`. Its arguments are the loop's, and its results have one more, the
    scratch memory.
    """
    module = ir.Module()
    builder, frame = handler(module, NAME)
    code, number = Code(builder, loop.dtype, lanes), NUMBERS[loop.dtype]
    inputs = loop.jaxpr.invars
    kinds = [I8 if type_of(v) == "bool" else number for v in inputs]
    pointers = buffers(builder, frame, kinds, results=False)
    results = buffers(builder, frame, [number] * (len(loop.jaxpr.outvars) + 1), results=True)
    program, scratch = Program(loop, FUNCTIONS), Scratch(results[-1])
    steps = _Steps(code, loop, program, scratch, pointers, results)
    last = code.loop(loop.length, steps.first, steps.step)
    for v, pointer, result in zip(loop.carries, last, results, strict=False):
        there = {v: place_of(v, pointer)}
        nest(code, program, there, [(v, place_of(v, result))], level=0, flat=True)
    succeed(builder)
    return str(module), scratch.size


class _Steps:
    """The steps of a loop, as they are appended to a function.

    Args:
      code: appends the code.
      loop: the loop.
      program: its step.
      scratch: memory.
      pointers: to the loop's inputs.
      results: to its results.
    """

    def __init__(
        self,
        code: Code,
        loop: Loop,
        program: Program,
        scratch: Scratch,
        pointers: Sequence[Any],
        results: Sequence[Any],
    ):
        self._code, self._loop, self._program = code, loop, program
        inputs, begin = loop.jaxpr.invars, loop.shared + loop.carry
        self._shared = {
            v: place_of(v, p) for v, p in zip(inputs[: loop.shared], pointers, strict=False)
        }
        self._stacked = [
            *zip(loop.xs, pointers[begin:], strict=True),
            *zip(loop.ys, results[loop.carry : -1], strict=True),
        ]
        self._products = {p.out: self._packed(p, scratch) for p in program.products}
        self._carries = Carries(loop, program, scratch)
        self.first = self._carries.first(code, pointers[loop.shared : begin])
        outs = set(filter(lambda v: isinstance(v, Var), loop.jaxpr.outvars))
        self._kept = {
            v: scratch.take(*rows_and_columns(v)) for v in program.stored if v not in outs
        }

    def _packed(self, product: Product, scratch: Scratch) -> tuple[Product, Blocks, Place]:
        """A product, how it is taken apart, and where its matrix is in panels."""
        columns = rows_and_columns(product.out)[1]
        blocks = Blocks.of(*rows_and_columns(product.left), columns, self._code.lanes)
        panels = scratch.take(1, blocks.packed)
        blocks.pack(self._code, self._shared[product.matrix], panels, turned=product.turned)
        return product, blocks, panels

    def step(self, k: Any, pointers: Sequence[Any]) -> list[Any]:
        """Appends one step; pointers to the carries, and those after it."""
        code, loop = self._code, self._loop
        t = code.difference(loop.length - 1, k) if loop.reverse else k
        rows = [place_of(v, p, code.times(t, place_of(v, p).size)) for v, p in self._stacked]
        xs, ys = rows[: len(loop.xs)], rows[len(loop.xs) :]
        places = {**self._shared, **self._carries.entering(pointers), **self._kept}
        places.update(zip(loop.xs, xs, strict=True))
        wanted = [*zip(loop.ys, ys, strict=True), *self._carries.wanted(pointers)]
        made, copied = placed(wanted, self._program, places)
        self._levels({**places, **made}, copied)
        return self._carries.next(code, pointers, ys)

    def _levels(self, places: Mapping[Var, Place], copied: Stores) -> None:
        """What a step does, level by level."""
        stores = [*copied]
        for v in self._program.stored:
            made = self._program.made[v]
            if isinstance(made, Joined):
                stores += [(part, places[v].part(*where)) for *where, part in made.parts]
            elif not isinstance(made, Product):
                stores.append((v, places[v]))
        for level in range(self._program.levels):
            for product, blocks, panels in self._products.values():
                if self._program.level_of(product.out) == level:
                    blocks.multiply(self._code, places[product.left], panels, places[product.out])
            here = [s for s in stores if self._program.level_of(s[0]) == level]
            self._nests(places, here, level)

    def _nests(self, places: Mapping[Var, Place], stores: Stores, level: int) -> None:
        """Values of one shape are made in one nest of loops."""
        groups: dict[Any, list[tuple[Any, Place]]] = {}
        for atom, place in stores:
            flat = place.is_contiguous and self._program.is_flat(atom, level)
            size = (1, place.size) if flat else (place.rows, place.columns)
            groups.setdefault((flat, size), []).append((atom, place))
        for (flat, _), group in groups.items():
            nest(self._code, self._program, places, group, level=level, flat=flat)
