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
      slow: whether it takes long: up to a hundred linear solves where one of a batch is chaotic,
        and as long to compile.
    """

    method: Forward
    steady: bool = False
    derivatives: bool = True
    slow: bool = False


METHODS = {
    "chunks": Row(pb.Chunks(), steady=True),
    "chunks to the end": Row(pb.Chunks(8, rounds=7), steady=True),
    "chunks, two rounds": Row(pb.Chunks(8)),
    "newton": Row(pb.Newton(), slow=True),
    "newton by diagonals": Row(pb.Newton("diagonal"), slow=True, derivatives=False),
    "newton, damped": Row(pb.Newton(damping="residual"), slow=True, derivatives=False),
    "fixed point": Row(pb.FixedPoint(), slow=True),
}


def named(keep=lambda row: True):
    """The names of rows, for `pytest.mark.parametrize`."""
    rows = {name: row for name, row in METHODS.items() if keep(row)}
    return [pytest.param(k, marks=[pytest.mark.slow] * row.slow) for k, row in rows.items()]
