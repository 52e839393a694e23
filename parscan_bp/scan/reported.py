"""What `report=True` tells of a scan: how good the solutions are that its derivatives are made of.

The values are exact. So what is judged is the adjoint system at the scan's own carries,

    lambda_{t-1} = gamma_{t-1} + J_t^T lambda_t,

for cotangents gamma of the carry after every step that are not special; see `report.cotangents`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from parscan_bp.jaxprs.replay import vary_alike
from parscan_bp.linearise.active import Active
from parscan_bp.report import (
    Report,
    backward_error,
    bound_of,
    cotangents,
    errors_of_steps,
    made_report,
    worst_of,
)
from parscan_bp.scan.linear_scan import LinearScan
from parscan_bp.scan.systems import Adjoint, Primal
from parscan_bp.scan.trajectory import before
from parscan_bp.system import System
from parscan_bp.types import Array, PyTree

NOTHING = Active((), (), ())


def report_on_scan(scan: LinearScan, residuals: PyTree, outs: Sequence[Array]) -> Report:
    """The report on all systems that the solver is given, one for each group of carry leaves.

    Args:
      scan: the scan.
      residuals: ``(consts, init, xs, after, extra)``, as of `augmented`.
      outs: (carry, ys).
    """
    residuals = vary_alike(residuals)
    return worst_of([_report(scan.restricted(g), residuals, outs) for g in scan.groups])


def _report(scan: LinearScan, residuals, outs) -> Report:
    linear, primal = scan.linearisation, scan.primal(residuals)
    floats = scan.body.float_carry
    gamma = cotangents([primal.after[k] for k in floats])
    last = [jnp.zeros_like(primal.init[k]) for k in floats]
    rounds: int | Array = 1
    if scan.fused is not None and scan.fused.adjoins:
        _, start, _, lambdas = scan.fused.adjoint(primal, NOTHING, gamma, last)
        state, shown = (linear.pack(v, cotangent=True) for v in (start, lambdas))
    else:
        system = _Vectors(Adjoint(primal, NOTHING, gamma, []))
        state = linear.pack(last, cotangent=True)
        (state, _, shown), rounds = scan.solver.run_counted(system, state)
    bound = bound_of(shown)
    errors = _errors(primal, linear.pack(gamma, cotangent=True), shown, state, bound)
    return made_report(errors, bound, outs, iterations=rounds)


@dataclasses.dataclass(frozen=True)
class _Vectors(System):
    """A system of which the vectors are wanted, as its solver makes them."""

    system: System

    @property
    def length(self):
        return self.system.length

    @property
    def backward(self):
        return self.system.backward

    def block(self, start, size):
        return self.system.block(start, size)

    def collect(self, start, shown, state, aux=None):
        return None, shown


def _errors(primal: Primal, gamma: PyTree, shown: PyTree, state: PyTree, bound: float):
    """The errors of lambda_t and of the state that leaves the first step, and of the last lambda.

    Args:
      primal: the scan.
      gamma, shown: right-hand side and solution, stacked.
      state: J_1^T lambda_1.
    """
    given, solved, first = map(jax.tree.leaves, (gamma, shown, state))
    tree, how = jax.tree.structure(shown), {"reverse": primal.reverse}
    # A step's row is that of the lambda before it, which has no cotangent of its own at the end.
    out = before(first, solved, 0, primal.length, **how)
    added = before([jnp.zeros_like(v) for v in first], given, 0, primal.length, **how)

    def judge(steps, row):
        operators = primal.linearisation.adjoint_operator(steps, NOTHING)
        return errors_of_steps(operators, *row, bound=bound)

    row = (shown, *(jax.tree.unflatten(tree, v) for v in (out, added)))
    end = 0 if primal.reverse else -1
    last = backward_error(
        None, None, [v[end] for v in solved], [v[end] for v in given], bound=bound
    )
    return [primal.map(judge, row), last]
