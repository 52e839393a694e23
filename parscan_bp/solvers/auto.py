"""The choice that ``solver=None`` means."""

from __future__ import annotations

import dataclasses

from parscan_bp.solvers.base import Solver
from parscan_bp.solvers.sweep import Sweep


@dataclasses.dataclass(frozen=True)
class Facts:
    """What the choice is made from; all of it is known before anything runs.

    Attributes:
      platform: "cpu", "gpu" or "tpu".
      length: number of steps T.
      batch: number of independent rows B that the structure leaves.
      features: order H of one row's Jacobian.
      itemsize: bytes of a number.
      structure: "diagonal", "block" or "dense".
      linearisation: "analytic" or "matrix-free".
      equations: equations in the body's jaxpr.
    """

    platform: str
    length: int
    batch: int
    features: int
    itemsize: int
    structure: str
    linearisation: str
    equations: int

    @property
    def columns(self) -> int:
        """Tangents that an explicit Jacobian takes."""
        return 1 if self.structure == "diagonal" else self.features


@dataclasses.dataclass(frozen=True)
class Choice:
    """A solver and the reason for it; ``solver`` is ``None`` for `lax.scan` itself."""

    solver: Solver | None
    reason: str

    def __str__(self):
        return "lax.scan" if self.solver is None else repr(self.solver)


def choose(facts: Facts) -> Choice:
    """The solver for a scan whose solver was not named."""
    return Choice(Sweep(), "sequential in time chunks")
