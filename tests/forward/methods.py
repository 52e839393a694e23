"""The methods of a parallel forward pass, one row each: a new one is added here."""

from __future__ import annotations

import dataclasses

import pytest

import parscan_bp as pb
from parscan_bp.forward import Forward


@dataclasses.dataclass(frozen=True)
class Row:
    """A method in the tables of tests.

    Attributes:
      method: the method.
      steady: whether it converges on every recurrence that contracts, whatever its rate.
      derivatives: whether it takes the steps of the tests of derivatives.
    """

    method: Forward
    steady: bool = False
    derivatives: bool = True


def by_method(*names: str) -> pytest.MarkDecorator:
    """Parametrises by all methods that the tests of derivatives take; all but these are slow."""
    taken = [name for name, row in METHODS.items() if row.derivatives]
    marks = {name: () if name in names else pytest.mark.slow for name in taken}
    return pytest.mark.parametrize("name", [pytest.param(n, marks=marks[n]) for n in taken])


METHODS = {
    "chunks": Row(pb.Chunks(), steady=True),
    "chunks to the end": Row(pb.Chunks(8, rounds=7), steady=True),
    "chunks, two rounds": Row(pb.Chunks(8)),
    "newton": Row(pb.Newton()),
    "newton by diagonals": Row(pb.Newton("diagonal"), derivatives=False),
    "newton, damped": Row(pb.Newton(damping="residual"), derivatives=False),
    "fixed point": Row(pb.FixedPoint()),
}
