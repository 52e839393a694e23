"""Values of a step in registers, made of what is in memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jax.extend.core import JaxprEqn, Literal, Var

from parscan_bp.jaxprs.hijax import kind_of
from parscan_bp.jaxprs.primitive_kinds import VIEWS
from parscan_bp.jaxprs.read import shape_of
from parscan_bp.native.llvm.vectors import Code, MemoryRows, starts, width_for
from parscan_bp.native.program import Program, Slice, Unsupported, rows_and_columns, type_of


class BlockValues:
    """The values of one block of numbers; each is made once.

    Args:
      code: appends the code.
      program: the step.
      places: of what is in memory.
      level: the values of this level are made; those below are read, where they have a place.
      row: of the block; ``None`` of a block that counts numbers from the first one.
      column: the first of the block.
      width: how many.
    """

    def __init__(
        self,
        code: Code,
        program: Program,
        places: Mapping[Var, MemoryRows],
        level: int,
        row: Any,
        column: Any,
        width: int,
    ):
        self.code, self.program, self.places = code, program, places
        self.level, self.row, self.column, self.width = level, row, column, width
        self._made: dict[Any, Any] = {}
        self._others: dict[Any, BlockValues] = {}

    def value(self, atom: Any, row: int = 0, column: int = 0) -> Any:
        """A value at the block, moved by some rows and columns."""
        if isinstance(atom, Literal):
            return self._literal(atom)
        key = atom, row, column
        if key not in self._made:
            made = self.program.making(atom, self.level)
            if isinstance(made, Slice):
                value = self.value(made.of, row + made.row, column + made.column)
            elif isinstance(made, JaxprEqn):
                value = self._equation(made, row, column)
            else:
                value = self._load(self.places[atom], row, column)
            self._made[key] = value
        return self._made[key]

    def _literal(self, atom: Literal) -> Any:
        if shape_of(atom) not in ((), (1,)):
            raise Unsupported("has a constant array")
        number = self.code.const(np.asarray(atom.val).item(), self.width)
        if type_of(atom) != "bool":
            return number
        builder = self.code.builder
        return builder.fcmp_ordered("!=", number, self.code.const(0.0, self.width))

    def _load(self, place: MemoryRows, row: int, column: int) -> Any:
        code = self.code
        if place.rows * place.columns == 1:
            return code.splat(code.load(place, 0, 1), self.width)
        if self.row is None:
            return code.load(place, (self.column, column), self.width)
        at = code.times(code.index(self.row, row), place.stride)
        return code.load(place, (at, self.column, column), self.width)

    def _equation(self, eqn: JaxprEqn, row: int, column: int) -> Any:
        name, out = kind_of(eqn), eqn.outvars[0]
        if name in VIEWS:
            return self._view(eqn, row, column)
        values = [self._repeated(atom, out, row, column) for atom in eqn.invars]
        value = self.program.functions[name](self.code, eqn.params, *values)
        if value is None:
            raise Unsupported(f"contains {name} of a kind that is not made natively")
        return value

    def _repeated(self, of: Any, out: Any, row: int, column: int) -> Any:
        """A value that is repeated along the rows or columns of another that it is wanted for."""
        (rows, columns), (of_rows, of_columns) = map(rows_and_columns, (out, of))
        if isinstance(of, Literal) or self.row is None or (rows, columns) == (of_rows, of_columns):
            return self.value(of, row, column)
        if of_rows not in (1, rows) or of_columns not in (1, columns):
            raise Unsupported("repeats values along another axis than the first or last")
        row = row if of_rows > 1 else 0
        first = self.row if of_rows > 1 else 0
        if of_columns > 1:
            return self._beside(first, self.column, self.width).value(of, row, column)
        return self.code.splat(self._beside(first, 0, 1).value(of, row), self.width)

    def _view(self, eqn: JaxprEqn, row: int, column: int) -> Any:
        of, out, code = eqn.invars[0], eqn.outvars[0], self.code
        if kind_of(eqn) == "broadcast_in_dim" and not isinstance(of, Literal):
            axes, last = eqn.params["broadcast_dimensions"], len(shape_of(out)) - 1
            if axes == tuple(range(last)) and shape_of(of) == shape_of(out)[:-1] and last:
                if self.row is None:
                    return self.value(of)
                return code.splat(self._flat(of, (self.row, row), 1), self.width)
            if axes and axes[-1] != last and math.prod(shape_of(of)) > 1:
                raise Unsupported("repeats values along another axis than the first or last")
            return self._repeated(of, out, row, column)
        columns = rows_and_columns(out)[1]
        if self.row is None or rows_and_columns(of)[1] == columns:
            return self.value(of, row, column)
        first = code.times(code.index(self.row, row), columns)
        return self._flat(of, (first, self.column, column), self.width)

    def _beside(self, row: Any, column: Any, width: int) -> BlockValues:
        """The values of another block."""
        key = row is self.row, width
        if key not in self._others:
            self._others[key] = BlockValues(
                self.code, self.program, self.places, self.level, row, column, width
            )
        return self._others[key]

    def _flat(self, of: Any, at: Any, width: int) -> Any:
        """Numbers of a value that is taken as one row."""
        if not self.program.is_flat(of, self.level):
            raise Unsupported("has a value in another shape, of which parts are taken")
        index = self.code.index(at)
        numbers = BlockValues(self.code, self.program, self.places, self.level, None, index, width)
        return numbers.value(of)


def nest(
    code: Code,
    program: Program,
    places: Mapping[Var, MemoryRows],
    stores: Sequence[tuple[Any, MemoryRows]],
    *,
    level: int,
    flat: bool,
) -> None:
    """Makes values of one shape, block by block, and writes them.

    Args:
      code: appends the code.
      program: the step.
      places: of what is in memory.
      stores: the values, each with a place.
      level: of the values.
      flat: whether all numbers are taken as one row.
    """
    rows, columns = stores[0][1].rows, stores[0][1].columns
    if flat:
        rows, columns = 1, rows * columns
    width = width_for(columns, code.lanes)

    def block(row, column):
        values = BlockValues(code, program, places, level, None if flat else row, column, width)
        for atom, place in stores:
            value = values.value(atom)
            at = 0 if flat else code.times(row, place.stride)
            code.store(value, place, (at, column))

    def line(row, _):
        if columns <= 2 * width:
            for column in starts(columns, width):
                block(row, column)
            return []

        def step(k, _):
            block(row, code.at_most(code.times(k, width), columns - width))
            return []

        code.loop(-(-columns // width), [], step)
        return []

    code.loop(rows, [], line)
