"""Which loops of a scan are one native function on a CPU, and why another is not."""

from __future__ import annotations

import jax

from parscan_bp import native
from parscan_bp.jaxprs.replay import evaluate
from parscan_bp.linearise.linear_step import LinearStep
from parscan_bp.scan.plan import ScanPlan


def native_loops(plan: ScanPlan, step: LinearStep | None) -> str | None:
    """What `explain` says of them; ``None`` where none is asked for.

    Args:
      plan: of the scan.
      step: its linear map, `LinearScan.linear_step`.
    """
    if plan.rule is None:
        return None
    values, adjoint = plan.rule.loop.values.is_native, plan.rule.scan.solver.one_function
    if not (values or adjoint):
        return None
    told = [f"values {'native' if values else 'by lax.scan'}"]
    if adjoint:
        why = _obstacle(step, plan.rule.scan.length)
        told.append("derivatives native" if why is None else f"derivatives not: the step {why}")
    return f"loops on a CPU: {', '.join(told)}"


def _obstacle(step: LinearStep | None, length: int) -> str | None:
    """Why the loop of a step's linear map is no native function, as "the step ..." goes on."""
    if step is None:
        return "has its Jacobian formed"
    types = [
        [a for a, v in zip(step.known.jaxpr.out_avals, step.known.varies, strict=True) if v is own]
        for own in (False, True)
    ]

    def loop_step(shared, vector, own):
        return evaluate(step.apply, [*step.known.in_order(own, shared), *vector])

    closed = jax.make_jaxpr(loop_step)(types[0], list(step.vector), types[1])
    return native.unsupported(closed, len(types[0]), step.width, length, False)
