"""Bytes that a derivative stores of the steps of a while loop."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import JaxprEqn

from parscan_bp.jaxprs.read import depending, differentiable, variables
from parscan_bp.jaxprs.replay import evaluate
from parscan_bp.jaxprs.stage import Staged, trace_call
from parscan_bp.linearise.body import Body
from parscan_bp.loops.stretches import stepped_by
from parscan_bp.originals import lax_scan
from parscan_bp.primitives.pushforward import struct_of
from parscan_bp.scan.decide import make_plan
from parscan_bp.scan.plan import ScanPlan
from parscan_bp.scan.storage import StoredBytes
from parscan_bp.solvers import Solver
from parscan_bp.trees import nbytes, replace_at

NO_LIMIT = 2**62
STRETCH = 16
"""Steps, of which the costs of one are those of any number."""


def costs_of(equation: JaxprEqn, solver: Solver | None) -> StoredBytes:
    """Those of a traced loop, by the scan of a stretch of its steps.

    Args:
      equation: the loop.
      solver: that of a stretch; ``None`` for `lax.scan`.

    Raises:
      NotImplementedError: if the solver cannot take the step.
    """
    first = equation.params["cond_nconsts"]
    args = [struct_of(v.aval) for v in equation.invars[first:]]

    def run(args: list[Any], steps: Any) -> Any:
        step, init = stepped_by(equation, args, steps)
        return lax_scan(step, init, jnp.arange(STRETCH, dtype=jnp.int32))

    closed, tree = trace_call(run, args, jax.ShapeDtypeStruct((), jnp.int32))
    staged = Staged.of(closed, tree)
    assert staged is not None
    if solver is not None:
        plan = make_plan(staged, solver=solver, memory_limit=NO_LIMIT)
        if isinstance(plan, ScanPlan) and plan.rule is not None and plan.rule.stored is not None:
            return plan.rule.stored.costs
    body = Body.of_scan(staged.equation)
    carry = nbytes(list(body.carry_avals))
    return StoredBytes(carry, _residual_bytes(body), body.x_bytes, body.const_bytes, lambda n: 0)


def _residual_bytes(body: Body) -> int:
    """What `lax.scan` stores of a step: what the transpose of its tangents reads and it makes.

    All that it makes, where an axis of an outer `jax.vmap` is not bound here.
    """
    moving = differentiable(body.jaxpr.in_avals)
    floats = differentiable(body.jaxpr.out_avals)

    def residuals(*args):
        def run(*moved):
            outs = evaluate(body.jaxpr, replace_at(args, moving, moved))
            return [outs[k] for k in floats]

        return jax.tree.leaves(jax.vjp(run, *(args[k] for k in moving))[1])

    try:
        jaxpr = jax.make_jaxpr(residuals)(*map(struct_of, body.jaxpr.in_avals)).jaxpr
    except NameError:
        return nbytes(list(body.carry_avals)) + body.nbytes
    moved = depending(jaxpr, jaxpr.invars[body.num_consts :])
    return nbytes([v.aval for v in {v for v in variables(jaxpr.outvars) if v in moved}])
