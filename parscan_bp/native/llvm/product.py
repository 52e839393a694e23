"""Products of a few rows with a matrix that stays the same: sums in registers.

The matrix is packed once before all steps, in panels of the columns that are summed at a time, so
that it is read from one end to the other. Where a number of rows or columns is no multiple of a
block's, the last block overlaps the one before, and makes the same numbers again.
"""

from __future__ import annotations

import dataclasses

from parscan_bp.native.llvm.vectors import Code, MemoryRows, starts, width_for

ROWS, VECTORS = 4, 4
"""Most rows, and vectors of columns, of a block of sums: what 32 registers hold."""
CHAINS = 8
"""Sums under way at a time: a sum waits four cycles for the one before."""


@dataclasses.dataclass(frozen=True)
class Blocks:
    """How a product is taken apart.

    Attributes:
      rows, summed, columns: the sizes.
      width: of a vector.
      vectors: vectors of columns in a panel.
      first: where each vector begins, a panel after the other.
      block: rows in a block.
    """

    rows: int
    summed: int
    columns: int
    width: int
    vectors: int
    first: tuple[int, ...]
    block: int

    @classmethod
    def of(cls, rows: int, summed: int, columns: int, lanes: int) -> Blocks:
        width = width_for(columns, lanes)
        first = starts(columns, width)
        most = VECTORS if rows > 1 else CHAINS
        panels = -(-len(first) // most)
        vectors = -(-len(first) // panels)
        first += [columns - width] * (panels * vectors - len(first))
        block = -(-rows // -(-rows // ROWS))
        return cls(rows, summed, columns, width, vectors, tuple(first), block)

    @property
    def panels(self) -> int:
        return len(self.first) // self.vectors

    @property
    def packed(self) -> int:
        """Numbers of the packed matrix."""
        return len(self.first) * self.width * self.summed

    def pack(self, code: Code, matrix: MemoryRows, to: MemoryRows, *, turned: bool) -> None:
        """Writes the matrix, of shape (summed, columns) or turned, in panels."""
        if turned:
            self._pack_turned(code, matrix, to)
            return

        def row(k, _):
            for v, first in enumerate(self.first):
                panel, place = divmod(v, self.vectors)
                value = code.load(matrix, (code.times(k, matrix.stride), first), self.width)
                at = panel * self.summed * self.vectors * self.width + place * self.width
                code.store(value, to, (code.times(k, self.vectors * self.width), at))
            return []

        code.loop(self.summed, [], row)

    def _pack_turned(self, code: Code, matrix: MemoryRows, to: MemoryRows) -> None:
        size = self.vectors * self.width
        for v, first in enumerate(self.first):
            panel, place = divmod(v, self.vectors)
            base = panel * self.summed * size + place * self.width

            def column(lane, _, first=first, base=base):
                def number(k, _):
                    at = code.times(code.index(lane, first), matrix.stride)
                    value = code.load(matrix, (at, k), 1)
                    code.store(value, to, (code.times(k, size), base, lane))
                    return []

                code.loop(self.summed, [], number)
                return []

            code.loop(self.width, [], column)

    def multiply(self, code: Code, left: MemoryRows, packed: MemoryRows, out: MemoryRows) -> None:
        """``out = left @ matrix``."""
        size = self.vectors * self.width

        def panel(p: int) -> None:
            first = self.first[p * self.vectors : (p + 1) * self.vectors]
            base = p * self.summed * size

            def block(b, _):
                row = code.at_most(code.times(b, self.block), self.rows - self.block)
                sums = self._sums(code, left, packed, row, base)
                for r in range(self.block):
                    for v, column in enumerate(dict.fromkeys(first)):
                        at = (code.times(code.index(row, r), out.stride), column)
                        code.store(sums[r * self.vectors + v], out, at)
                return []

            code.loop(-(-self.rows // self.block), [], block)

        for p in range(self.panels):
            panel(p)

    def _sums(self, code, left, packed, row, base):
        """The sums of a block: of each of its rows with each vector of a panel."""
        count, size = self.block * self.vectors, self.vectors * self.width
        together = min(max(CHAINS // count, 1), self.summed)
        rows = [code.times(code.index(row, r), left.stride) for r in range(self.block)]

        def add(k, sums, part):
            at = [
                code.load(packed, (code.times(k, size), base, v * self.width), self.width)
                for v in range(self.vectors)
            ]
            sums = list(sums)
            for r, start in enumerate(rows):
                one = code.splat(code.load(left, (start, k), 1), self.width)
                for v, vector in enumerate(at):
                    place = part * count + r * self.vectors + v
                    sums[place] = code.fma(one, vector, sums[place])
            return sums

        def body(k, sums):
            for part in range(together):
                sums = add(code.index(code.times(k, together), part), sums, part)
            return sums

        sums = [code.const(0.0, self.width)] * (count * together)
        if self.summed // together:
            sums = list(code.loop(self.summed // together, sums, body))
        for k in range(self.summed - self.summed % together, self.summed):
            sums = add(k, sums, 0)
        total = sums[:count]
        for part in range(1, together):
            more = sums[part * count : (part + 1) * count]
            total = [code.builder.fadd(a, b) for a, b in zip(total, more, strict=True)]
        return total
