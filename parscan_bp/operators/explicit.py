"""Operators whose one array has the entries of the matrix, which a sum of products replaces."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from parscan_bp.operators.base import Operator
from parscan_bp.types import Array


@dataclasses.dataclass(frozen=True, eq=False)
class Explicit(Operator):
    """Blocks of a matrix in one array, each number in one place; abstract.

    `Scaled` keeps an exponent beside each of the numbers. A block, or the matrix if it is one, is
    in the last two axes, (rows, columns); a diagonal is `elementwise`, and has the last axis alone.
    """

    closed: ClassVar[bool] = True
    multilinear: ClassVar[bool] = True
    elementwise: ClassVar[bool] = False

    @property
    def numbers(self) -> Array:
        """The array."""
        ((leaf, _),) = self.leaves()
        return leaf

    def grouped(self, v: Array) -> Array:
        """Vectors (..., n) as what each block takes of them."""
        return v

    def joined(self, v: Array) -> Array:
        """What the blocks return as vectors again."""
        return v
