"""Code of a native function: loops, memory, and vectors of numbers in registers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.ir as ir

I1, I8, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 32, 64))
POINTER = I8.as_pointer()
NUMBERS = {"float32": ir.FloatType(), "float64": ir.DoubleType()}
CONTRACT = ("contract",)
"""What XLA allows LLVM, too: a product and a sum as one operation."""


@dataclasses.dataclass(frozen=True)
class MemoryRows:
    """Rows of numbers in memory.

    Attributes:
      base: pointer to numbers.
      start: the first number, counted from ``base``.
      rows, columns: how many; one row is read for all rows, one column for all columns.
      stride: from one row to the next.
      is_bool: whether the numbers are bytes that are zero or one.
    """

    base: Any
    start: Any
    rows: int
    columns: int
    stride: int
    is_bool: bool = False

    @property
    def is_contiguous(self) -> bool:
        return self.rows == 1 or self.stride == self.columns

    def on(self, base: Any) -> MemoryRows:
        """The same place of other memory."""
        return dataclasses.replace(self, base=base)

    @property
    def size(self) -> int:
        return self.rows * self.columns

    def part(self, row: int, column: int, rows: int, columns: int) -> MemoryRows:
        """Some of the rows and columns."""
        start = (self.start, row * self.stride + column)
        return dataclasses.replace(self, start=start, rows=rows, columns=columns)


class Code:
    """Appends to a function of LLVM.

    Args:
      builder: where.
      dtype: of the numbers.
      lanes: numbers in a register.
    """

    def __init__(self, builder: ir.IRBuilder, dtype: str, lanes: int):
        self.builder = builder
        self.number = NUMBERS[dtype]
        self.dtype = dtype
        self.lanes = lanes
        self.align = 4 if dtype == "float32" else 8

    # --- indices ------------------------------------------------------------------------------

    def index(self, *terms: Any) -> Any:
        """A sum of ints, of LLVM's values and of nested sums."""
        known, made = 0, None
        for term in _flat(terms):
            if isinstance(term, int):
                known += term
            else:
                made = term if made is None else self.builder.add(made, term, flags=("nsw",))
        if made is None:
            return known
        return self.builder.add(made, I64(known), flags=("nsw",)) if known else made

    def times(self, index: Any, factor: int) -> Any:
        if isinstance(index, int):
            return index * factor
        return self.builder.mul(index, I64(factor), flags=("nsw",)) if factor != 1 else index

    def difference(self, most: int, index: Any) -> Any:
        return most - index if isinstance(index, int) else self.builder.sub(I64(most), index)

    def at_most(self, index: Any, most: int) -> Any:
        if isinstance(index, int):
            return min(index, most)
        return self.builder.select(
            self.builder.icmp_signed("<", index, I64(most)), index, I64(most)
        )

    # --- memory -------------------------------------------------------------------------------

    def pointer(self, base: Any, offset: Any) -> Any:
        offset = self.index(offset)
        return self.builder.gep(base, [I64(offset) if isinstance(offset, int) else offset])

    def load(self, place: MemoryRows, offset: Any, width: int) -> Any:
        number = I8 if place.is_bool else self.number
        pointer = self.pointer(place.base, (place.start, offset))
        if width > 1:
            pointer = self.builder.bitcast(pointer, ir.VectorType(number, width).as_pointer())
        value = self.builder.load(pointer)
        value.align = 1 if place.is_bool else self.align
        if not place.is_bool:
            return value
        return self.builder.icmp_unsigned("!=", value, ir.Constant(value.type, None))

    def store(self, value: Any, place: MemoryRows, offset: Any) -> None:
        pointer = self.pointer(place.base, (place.start, offset))
        if place.is_bool:
            width = width_of(value)
            value = self.builder.zext(value, ir.VectorType(I8, width) if width > 1 else I8)
        if isinstance(value.type, ir.VectorType):
            pointer = self.builder.bitcast(pointer, value.type.as_pointer())
        self.builder.store(value, pointer).align = 1 if place.is_bool else self.align

    # --- vectors ------------------------------------------------------------------------------

    def type(self, width: int) -> Any:
        return self.number if width == 1 else ir.VectorType(self.number, width)

    def const(self, value: float, width: int) -> Any:
        one = ir.Constant(self.number, float(value))
        return one if width == 1 else ir.Constant(self.type(width), [one] * width)

    def splat(self, value: Any, width: int) -> Any:
        """One number in all lanes."""
        if width == 1:
            return value
        none = ir.Constant(ir.VectorType(value.type, width), ir.Undefined)
        first = self.builder.insert_element(none, value, I32(0))
        lanes = ir.Constant(ir.VectorType(I32, width), [0] * width)
        return self.builder.shuffle_vector(first, none, lanes)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        product = self.builder.fmul(a, b, flags=CONTRACT)
        return self.builder.fadd(c, product, flags=CONTRACT)

    def call(self, name: str, *values: Any) -> Any:
        """An intrinsic function of LLVM, of values of one type."""
        of, count = values[0].type, width_of(values[0])
        lanes = f"v{count}" if count > 1 else ""
        name = f"llvm.{name}.{lanes}f{8 * self.align}"
        module = self.builder.module
        function = module.globals.get(name)
        if function is None:
            function = ir.Function(module, ir.FunctionType(of, [of] * len(values)), name)
        return self.builder.call(function, values)

    # --- loops --------------------------------------------------------------------------------

    def loop(
        self,
        count: int,
        init: Sequence[Any],
        body: Callable[[Any, Sequence[Any]], Sequence[Any]],
    ) -> Sequence[Any]:
        """``count`` times ``values = body(k, values)``, from ``init``."""
        if count == 1:
            return body(0, init)
        builder, before = self.builder, self.builder.block
        inside = builder.append_basic_block("loop")
        builder.branch(inside)
        builder.position_at_end(inside)
        k, values = builder.phi(I64), [builder.phi(v.type) for v in init]
        made = body(k, values)
        following, last = builder.add(k, I64(1), flags=("nsw",)), builder.block
        for phi, first, then in [(k, I64(0), following), *zip(values, init, made, strict=True)]:
            phi.add_incoming(first, before)
            phi.add_incoming(then, last)
        after = builder.append_basic_block("after")
        builder.cbranch(builder.icmp_signed("<", following, I64(count)), inside, after)
        builder.position_at_end(after)
        return made


def width_of(value: Any) -> int:
    """How many numbers it has."""
    return getattr(value.type, "count", 1)


def _flat(terms: Any) -> list[Any]:
    if isinstance(terms, tuple):
        return [one for term in terms for one in _flat(term)]
    return [terms]


def starts(size: int, width: int) -> list[int]:
    """Where vectors of ``width`` begin that cover ``size`` numbers; the last may overlap."""
    return [*range(0, size - width, width), size - width]


def width_for(size: int, lanes: int) -> int:
    """The largest power of two that is neither above the lanes nor above the size."""
    width = 1
    while 2 * width <= min(size, lanes):
        width *= 2
    return width
