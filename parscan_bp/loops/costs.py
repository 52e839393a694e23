"""Bytes that a derivative stores of the steps of a while loop."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import JaxprEqn

from parscan_bp.jaxprs.stage import Staged, trace_call
from parscan_bp.linearise.body import Body
from parscan_bp.loops.stretches import stepped_by
from parscan_bp.originals import lax_scan
from parscan_bp.primitives.pushforward import struct_of
from parscan_bp.scan.plan import ScanPlan, make_plan
from parscan_bp.scan.storage import Costs
from parscan_bp.solvers import Solver
from parscan_bp.trees import nbytes

NO_LIMIT = 2**62


def costs_of(equation: JaxprEqn, solver: Solver | None, stretch: int) -> Costs:
    """Those of a traced loop, by the scan of a stretch of its steps.

    Args:
      equation: the loop.
      solver: that of a stretch; ``None`` for `lax.scan`, which stores at most what a step makes.
      stretch: steps.

    Raises:
      NotImplementedError: if the solver cannot take the step.
    """
    first = equation.params["cond_nconsts"]
    args = [struct_of(v.aval) for v in equation.invars[first:]]

    def run(args: list[Any], steps: Any) -> Any:
        step, init = stepped_by(equation, args, steps)
        return lax_scan(step, init, jnp.arange(stretch, dtype=jnp.int32))

    closed, tree = trace_call(run, args, jax.ShapeDtypeStruct((), jnp.int32))
    staged = Staged.of(closed, tree)
    assert staged is not None
    if solver is not None:
        plan = make_plan(staged, solver=solver, memory_limit=NO_LIMIT)
        if isinstance(plan, ScanPlan) and plan.rule is not None and plan.rule.stored is not None:
            return plan.rule.stored.costs
    body = Body.of_scan(staged.equation)
    carry = nbytes(list(body.carry_avals))
    return Costs(carry, carry + body.nbytes, body.x_bytes, body.const_bytes, lambda n: 0)
