"""What a forward pass keeps of its steps, and the operators that follow from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax

from parscan_bp.linearise.active import Active
from parscan_bp.linearise.base import Steps
from parscan_bp.linearise.linear_step import LinearStep
from parscan_bp.operators import Operator
from parscan_bp.trees import stretch
from parscan_bp.types import Array


@dataclasses.dataclass(frozen=True, eq=False)
class ResidualMap:
    """What is kept of a step for its linear map: what the first part of its `cut` makes.

    Attributes:
      active: what is differentiated: what the maps make beside their products depends on it.
      step: the map of a step.
    """

    active: Active
    step: LinearStep

    def of_step(self, step: Steps) -> list[Array]:
        """The residuals of a step."""
        return self.step.cut.make(jax.tree.leaves(step.shared_and_own))

    def operator(self, steps: Steps, residuals: Sequence[Array], *, all_aux: bool) -> Operator:
        """The operator of a stretch, from the residuals of its steps; see `Residuals`."""
        k = self.step.known.of_each(*steps.shared_and_own, self.step.cut.finish, list(residuals))
        return self.step.operator(k, all_aux=all_aux)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Residuals:
    """The residuals of all steps.

    Attributes:
      values: the numbers, stacked.
      map: what follows from them.
    """

    values: list[Array]
    map: ResidualMap = dataclasses.field(metadata={"static": True})

    def when(self, active: Active) -> Residuals | None:
        """Itself, if it was kept for these active inputs, or for any.

        The maps make aux for the inputs that they were kept for, which a second derivative by other
        variables is not of: there the steps are made again. With active outputs they make none.
        """
        kept = self.map.active
        return self if kept == active or kept.y else None

    def operator(self, steps: Steps, start, size: int, *, all_aux: bool = False) -> Operator:
        """The operator of a stretch; ``all_aux`` as in `ByProducts.adjoint_operator`."""
        return self.map.operator(steps, stretch(self.values, start, size), all_aux=all_aux)
