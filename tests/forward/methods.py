"""The methods of a parallel forward pass, one row each: a new one is added here."""

from __future__ import annotations

import dataclasses

import parscan_bp as pb
from parscan_bp.forward import Forward


@dataclasses.dataclass(frozen=True)
class Row:
    """A method in the tables of tests.

    Attributes:
      method: the method.
      steady: whether it converges on every recurrence that contracts, whatever its rate.
      derivatives: whether it takes the steps of the tests of derivatives.
      passes: whether it makes up to a hundred passes over all steps of a batch of which one is
        chaotic: hundreds of systems are then for the slow tests.
    """

    method: Forward
    steady: bool = False
    derivatives: bool = True
    passes: bool = False


METHODS = {
    "chunks": Row(pb.Chunks(), steady=True),
    "chunks to the end": Row(pb.Chunks(8, rounds=7), steady=True),
    "chunks, two rounds": Row(pb.Chunks(8)),
    "newton": Row(pb.Newton(), passes=True),
    "newton by diagonals": Row(pb.Newton("diagonal"), passes=True, derivatives=False),
    "newton, damped": Row(pb.Newton(damping="residual"), passes=True, derivatives=False),
    "fixed point": Row(pb.FixedPoint(), passes=True),
}
