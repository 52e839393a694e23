"""``forward="fused"`` on a CPU: all steps in one native function."""

from __future__ import annotations

import dataclasses

from parscan_bp import native
from parscan_bp.choice.facts import Choice
from parscan_bp.scan.values.base import Values, for_carries_alone
from parscan_bp.scan.values.exact import InSteps
from parscan_bp.solvers import Sweep

GAIN = (
    'forward="fused" would make one native function of all steps; values differ from those of '
    "lax.scan by rounding. Both were timed: bench/results/peers.json"
)


@dataclasses.dataclass(frozen=True)
class Native(Values):
    """What ``forward="fused"`` of `parscan_bp.scan` means on a CPU, see `parscan_bp.native`."""

    def __repr__(self):
        return repr("fused")

    @property
    def gain(self):
        return GAIN

    def obstacle(self, staged, body):
        params = staged.equation.params
        if staged.symbolic_size is not None:
            return f"forward={self!r}: {staged.symbolic_size}; forward='exact' takes any size"
        if not params["length"]:
            return None  # nothing is made
        why = native.unsupported(
            body.jaxpr, body.num_consts, body.num_carry, params["length"], params["reverse"]
        )
        if why is None:
            return None
        return (
            f"forward={self!r}: on a CPU all steps are one native function, and the step "
            f"{why}; forward='exact' takes any step"
        )

    def of(self, step, *, adjoins):
        return _InOneFunction(native.scan, adjoins=adjoins)


@dataclasses.dataclass(frozen=True)
class _InOneFunction(InSteps):
    """All steps in one native function.

    Attributes:
      adjoins: whether the loop of a sweep is one, too.
    """

    adjoins: bool = dataclasses.field(kw_only=True)

    @property
    def is_native(self):
        return True

    def choice(self, choose):
        choice = choose()
        if not self.adjoins:
            return for_carries_alone(choice)
        if choice.solver in (None, Sweep(), Sweep(recompute=False)):
            return Choice(
                Sweep(recompute=False, native=True), "the values are by one native function"
            )
        return choice
