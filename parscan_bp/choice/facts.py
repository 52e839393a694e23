"""What the choice of a solver is made from, and what it is."""

from __future__ import annotations

import dataclasses

from parscan_bp.solvers.base import Solver


@dataclasses.dataclass(frozen=True)
class Facts:
    """What the choice is made from; all of it is known before anything runs.

    Attributes:
      platform: "cpu", "gpu" or "tpu".
      length: number of steps T.
      batch: number of independent rows B that the structure leaves.
      features: order H of one row's Jacobian.
      leaves: carry leaves that H is the sum of.
      itemsize: bytes of a number.
      structure: "diagonal", "block" or "dense".
      linearisation: "analytic", "matrix-free", or "columns" of an explicit Jacobian.
      equations: equations in the body's jaxpr.
      touched: bytes that a step reads and computes.
      jax_version: (major, minor), which says how XLA compiles a small loop.
      on_chip: whether there is one GPU, and kernels that take the cell's Jacobians as they are.
    """

    platform: str
    length: int
    batch: int
    features: int
    leaves: int
    itemsize: int
    structure: str
    linearisation: str
    equations: int
    touched: int
    jax_version: tuple[int, ...]
    on_chip: bool = False

    @property
    def elements(self) -> int:
        """Numbers that a step carries."""
        return self.batch * self.features

    @property
    def own(self) -> bool:
        """Whether the step is the user's own, its Jacobian not that of one of the cells."""
        return self.linearisation != "analytic"

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
