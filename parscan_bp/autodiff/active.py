"""Which parts of a scan take part in differentiation."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from jax.custom_derivatives import SymbolicZero, zero_from_primal


@dataclasses.dataclass(frozen=True)
class Active:
    """Which consts, inputs and outputs take part in differentiation, by position."""

    consts: tuple[int, ...]
    x: tuple[int, ...]
    y: tuple[int, ...]

    def of_consts(self, values: Sequence[Any]) -> list[Any]:
        return [values[k] for k in self.consts]

    def of_x(self, values: Sequence[Any]) -> list[Any]:
        return [values[k] for k in self.x]

    def insert_consts(self, values: Sequence[Any], active: Sequence[Any]) -> list[Any]:
        return replace_at(values, self.consts, active)

    def insert_x(self, values: Sequence[Any], active: Sequence[Any]) -> list[Any]:
        return replace_at(values, self.x, active)


def replace_at(values: Sequence[Any], index: Sequence[int], new: Sequence[Any]) -> list[Any]:
    """``values`` with the entries at ``index`` replaced."""
    out = list(values)
    for k, v in zip(index, new, strict=True):
        out[k] = v
    return out


def nonzero(tangents: Sequence[Any]) -> tuple[int, ...]:
    """Positions of the tangents that are not known to be zero."""
    return tuple(k for k, t in enumerate(tangents) if not isinstance(t, SymbolicZero))


def zeros_of(values: Sequence[Any]) -> list[Any]:
    """Tangents that are known to be zero."""
    return [zero_from_primal(v, symbolic_zeros=True) for v in values]


def filled(values: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
    """The tangents, known to be zero where a value has none."""
    pairs = zip(zeros_of(values), tangents, strict=True)
    return [zero if t is None else t for zero, t in pairs]
