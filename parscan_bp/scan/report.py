"""What `report=True` tells of a scan: how good the solutions are that its derivatives are made of.

The values are exact, or certified apart (`Report.forward`). So what is judged is the adjoint system
at the scan's own carries,

    lambda_{t-1} = gamma_{t-1} + J_t^T lambda_t,

for cotangents gamma of the carry after every step that are not special; see `report.cotangents`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp

from parscan_bp.forward import ForwardReport
from parscan_bp.jaxprs.replay import vary_alike
from parscan_bp.linearise.body import NOTHING
from parscan_bp.report import (
    Report,
    Rounds,
    Status,
    backward_error,
    bound_of,
    cotangents,
    errors_of_steps,
    made_report,
    worst_of,
)
from parscan_bp.scan.linear_scan import LinearScan
from parscan_bp.scan.systems import Adjoint, Primal, before
from parscan_bp.solvers.results import solved_observed
from parscan_bp.trees import add
from parscan_bp.types import Array, PyTree


def report_on_scan(scan: LinearScan, residuals: PyTree, outs: Sequence[Array]) -> Report:
    """The report on all systems that the solver is given, one for each group of carry leaves.

    Args:
      scan: the scan.
      residuals: ``(consts, init, xs, after, extra)``, as of `augmented`.
      outs: (carry, ys).
    """
    residuals = vary_alike(residuals)
    return worst_of([_report(scan.restricted(g), residuals, outs) for g in scan.groups])


def with_forward(report: Report, told: ForwardReport | None) -> Report:
    """The report on derivatives together with that on the values, if a method made them."""
    if told is None:
        return report
    bad = report.status == Status.NON_FINITE
    status = jnp.where(bad | (told.status == Status.OK), report.status, told.status)
    fell_back = report.fell_back | told.fell_back
    return dataclasses.replace(report, status=status, fell_back=fell_back, forward=told)


def _report(scan: LinearScan, residuals, outs) -> Report:
    linear, primal = scan.linearisation, scan.primal(residuals)
    floats: Sequence[int] = scan.body.float_carry
    rounds: Rounds | None = None
    gamma = cotangents([primal.after[k] for k in floats])
    last = [jnp.zeros_like(primal.init[k]) for k in floats]
    if scan.adjoint is not None:
        _, first, _, lambdas = scan.adjoint(primal, NOTHING, gamma, last)
    else:
        system, state = Adjoint(primal, NOTHING, gamma, []), linear.pack(last, cotangent=True)
        (state, _, (_, lambdas)), rounds = solved_observed(scan.solver, system, state)
        first = linear.unpack(state, cotangent=True)
    bound = bound_of([*lambdas, linear.body.rounded_in])
    # What the place after this one hands on, where there is one.
    beyond = scan.solver.place.entering(last, [v[None] for v in first], reverse=not scan.reverse)
    errors = _errors(primal, gamma, lambdas, (first, beyond), bound)
    return made_report(errors, bound, outs, rounds=rounds)


def _errors(primal: Primal, gamma, lambdas, ends, bound: float) -> list[Array]:
    """The errors of all rows of the system.

    ``ends`` are J_1^T lambda_1, and what the last lambda gets of steps that are elsewhere.
    """
    linear, how = primal.linearisation, {"reverse": primal.reverse}
    (first, beyond), end = ends, 0 if primal.reverse else -1
    last = [v[end] for v in lambdas], add(beyond, [v[end] for v in gamma])
    # A step's row is that of the lambda before it, which has no cotangent of its own at the end.
    rows = (
        lambdas,
        before(first, lambdas, 0, primal.length, **how),
        before([jnp.zeros_like(v) for v in first], gamma, 0, primal.length, **how),
    )

    def judge(steps, rows):
        operators = linear.adjoint_operator(steps, NOTHING)
        return errors_of_steps(operators, *rows, bound=bound)

    packed = tuple(linear.pack(row, cotangent=True) for row in rows)
    return [primal.map(judge, packed), backward_error(None, None, *last, bound=bound)]
