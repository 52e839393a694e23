"""What a forward pass keeps of its steps, and the operators that follow from it."""

from __future__ import annotations

import dataclasses

import jax

from parscan_bp.linearise.base import Steps
from parscan_bp.linearise.body import Active
from parscan_bp.linearise.linear_step import LinearStep
from parscan_bp.operators import Operator
from parscan_bp.trees import stretch
from parscan_bp.types import Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Residuals:
    """The residuals of all steps: what the first part of their map's `cut` makes.

    Nothing where that is mere arithmetic on the carries, which are kept anyway.

    Attributes:
      values: the numbers, stacked.
      step: the linear map of a step.
      active: what is differentiated: what the map makes beside its products depends on it.
    """

    values: list[Array]
    step: LinearStep = dataclasses.field(metadata={"static": True})
    active: Active = dataclasses.field(metadata={"static": True})

    def when(self, active: Active) -> Residuals | None:
        """Itself, if it was kept for these active inputs, or for any.

        The maps make aux for the inputs that they were kept for, which a second derivative by other
        variables is not of: there the steps are made again. With active outputs they make none.
        """
        return self if self.active == active or self.active.y else None

    def operator(self, steps: Steps, start, size: int, *, all_aux: bool = False) -> Operator:
        """The operator of a stretch; ``all_aux`` as in `ByProducts.adjoint_operator`."""
        here = stretch(self.values, start, size)
        k = self.step.known.of_each(*steps.shared_and_own, self.step.cut.finish, here)
        return self.step.operator(k, all_aux=all_aux)
