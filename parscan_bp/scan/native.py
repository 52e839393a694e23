"""``forward="fused"`` on a CPU: all steps in one native function."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

from parscan_bp import native
from parscan_bp.jaxprs.stage import Staged
from parscan_bp.linearise.body import Body
from parscan_bp.linearise.cell import CellBody
from parscan_bp.solvers.base import Solver


@dataclasses.dataclass(frozen=True)
class Native:
    """What ``forward="fused"`` of `parscan_bp.scan` means on a CPU, see `parscan_bp.native`."""

    scan: ClassVar[Callable] = staticmethod(native.scan)

    def __repr__(self):
        return repr("fused")

    def check(self, staged: Staged, body: Body) -> None:
        """Raises `NotImplementedError` if a step has what no native function is made of."""
        params = staged.equation.params
        why = native.unsupported(
            body.jaxpr, body.num_consts, body.num_carry, params["length"], params["reverse"]
        )
        if why is not None:
            raise NotImplementedError(
                f"forward={self!r}: on a CPU all steps are one native function, and the step "
                f"{why}; forward='exact' takes any step"
            )

    def check_placed(self, solver: Solver) -> None:
        """It runs wherever the solver wants the steps."""

    def loop(
        self, body: Body, of: CellBody | None, params: dict[str, Any], *, adjoins: bool
    ) -> None:
        """Nothing beside `scan` is needed."""
