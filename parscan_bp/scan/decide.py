"""What will be done with a traced scan: left to `jax.lax.scan`, or solved, and by what."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from parscan_bp.choice.choose import Question, choose
from parscan_bp.choice.facts import Choice, Facts
from parscan_bp.jaxprs.obstacles import replicated_output
from parscan_bp.jaxprs.read import is_differentiable
from parscan_bp.jaxprs.stage import NEEDS_VALUES, Staged, is_jit_disabled
from parscan_bp.linearise.body import Body
from parscan_bp.linearise.cell import CellBody
from parscan_bp.memory_limit import MemoryLimit, as_limit
from parscan_bp.scan.limit import storage_of, storage_of_lax
from parscan_bp.scan.linear_scan import LinearScan
from parscan_bp.scan.plan import Left, PlanOrLeft, ScanPlan
from parscan_bp.scan.rule import ScanRule
from parscan_bp.scan.step import Step, forms
from parscan_bp.scan.values.base import Pass, ScanLoop, Values
from parscan_bp.scan.values.exact import EXACT
from parscan_bp.solvers import Solver, Sweep

IN_PYTHON = "jax.disable_jit is on, and the steps are run by Python, one after the other"


def or_left(
    plan: Callable[[], PlanOrLeft | None],
    solver: Solver | None,
    values: Values,
) -> PlanOrLeft:
    """The plan of a call; or that there is none, as of a step that looks at its values."""
    try:
        made = plan()
    except NEEDS_VALUES:
        leaves = solver is not None and solver.leaves_to_lax and values.by_default
        if not (leaves and is_jit_disabled()):
            raise
        return Left(left_by(solver, IN_PYTHON), fell_back=True)  # type: ignore[arg-type]
    if made is None and not _may_be_left(solver, values):
        raise NotImplementedError(
            f"{_named(solver, values)[0]}: the function was traced, and has no loop of "
            "jax.lax.scan that they could be used for"
        )
    return Left("no loop is left to trace") if made is None else made


def make_plan(
    staged: Staged,
    trees: tuple[Any, Any, Any] | None = None,
    *,
    cell: CellBody | None = None,
    solver: Solver | None,
    jacobian: str | Callable = "auto",
    values: Values = EXACT,
    memory_limit: int | MemoryLimit | None = None,
) -> PlanOrLeft:
    """Decides how the derivatives of a traced scan are computed.

    Args:
      staged: the traced call.
      trees: pytree structures of the parameters, the carry and the inputs; only a given
        Jacobian needs them.
      cell: the cell that the body is, if it is known to be one.
      solver: a named solver, or ``None``.
      jacobian: a name that `scan` takes, or a function.
      values: whence the values come.
      memory_limit: of `scan`; ``None`` for that of the solver.

    Raises:
      NotImplementedError: if a named solver or forward pass cannot take the body.
      ValueError: if a given Jacobian does not fit the carry.
    """
    limit = as_limit(memory_limit)
    may_be_left = _may_be_left(solver, values)
    if staged.hi_type is not None:
        if not may_be_left:
            raise NotImplementedError(f"{_named(solver, values)[0]}: {staged.hi_type}")
        if limit is not None:
            raise NotImplementedError(f"memory_limit: got {limit.bytes:,}; {staged.hi_type}")
        told = staged.hi_type if solver is None else left_by(solver, staged.hi_type)
        return Left(told, fell_back=solver is not None)
    params, traced = staged.equation.params, Body.of_scan(staged.equation)
    why = values.obstacle(staged, traced)
    if why is not None:
        raise NotImplementedError(why)
    if not traced.float_carry or params["length"] == 0:
        nothing = "no step carries a derivative: there is nothing to solve"
        return ScanPlan(staged, Choice(None, nothing), stored=storage_of_lax(staged, limit))
    why = staged.symbolic_size or _replicated(traced) if may_be_left else None
    if why is not None:
        return _left(staged, solver, why, limit)
    step = Step.of(staged, traced, cell, jacobian, trees)
    made = values.of(step, adjoins=solver is None and jacobian == "auto")
    why = step.not_linear(solver) or (step.not_batched if may_be_left else None)
    if why is not None:
        if not may_be_left:
            named, remedy = _named(solver, values)
            raise NotImplementedError(
                f"{named}: {why}; {remedy} runs such a step through jax.lax.scan"
            )
        return _left(staged, solver, why, limit)
    plan = _solved(step, solver, made, limit)
    if plan.rule is not None and plan.rule.loop.is_placed:
        solver = plan.rule.scan.solver
        why = made.obstacle_at(solver.place)
        if why is not None:
            raise NotImplementedError(
                f"forward={values!r}: {solver!r} runs the steps where it wants them, and {why}"
            )
    return plan


def _may_be_left(solver: Solver | None, values: Values) -> bool:
    """Whether a call may be left to `lax.scan`."""
    return values.by_default and (solver is None or solver.leaves_to_lax)


def _named(solver: Solver | None, values: Values) -> tuple[str, str]:
    """What the caller named that keeps a call from `lax.scan`, and what would not."""
    pairs = []
    if solver is not None and not solver.leaves_to_lax:
        pairs.append((f"solver={solver!r}", "solver=None"))
    if not values.by_default:
        pairs.append((f"forward={values!r}", "forward='exact'"))
    named, remedies = zip(*pairs, strict=True)
    return ", ".join(named), ", ".join(remedies)


def _solved(
    step: Step,
    solver: Solver | None,
    values: Pass,
    limit: MemoryLimit | None,
) -> ScanPlan:
    """The plan of a scan whose step the linear model holds."""
    linear, _ = step.linearise(formed=forms(solver))
    if solver is not None and not (linear.can_keep and values.in_steps):
        solver.check_nothing_kept()
    auto = solver is None and step.jacobian == "auto"
    facts = step.facts(linear, may_form=auto and values.adjoint is None)
    choice = _choice(step, solver, values, facts, limit)
    if choice.solver is not None and limit is not None:
        limited = choice.solver.with_memory_limit(limit.bytes)
        choice = dataclasses.replace(choice, solver=limited)
    linear, extra = step.linearise(formed=forms(choice.solver))
    if choice.solver is None:
        stored = storage_of_lax(step.staged, limit)
        return ScanPlan(step.staged, choice, step, facts, stored=stored)
    if choice.solver.one_function:
        linear = linear.for_one_function()
    linear, answered = linear.answered()
    loop = ScanLoop(step.staged.equation, step.body, choice.solver, values, step.hoist, answered)
    linear_scan = LinearScan(linear, choice.solver, step.length, step.reverse, values.adjoint)
    storage = storage_of(step, linear_scan, extra, values, limit)
    in_one = auto and values.exact
    rule = ScanRule(loop, linear_scan, in_one, step.staged.symbolic_size, storage)
    return ScanPlan(step.staged, choice, step, facts, rule, extra)


def left_by(solver: Solver, why: str) -> str:
    """The reason of a call that a named solver leaves, as its caller said."""
    return f"{solver!r} leaves it to lax.scan: {why}"


def _left(staged: Staged, solver: Solver | None, why: str, limit: MemoryLimit | None) -> ScanPlan:
    """The plan of a call that is left to `lax.scan`."""
    stored = storage_of_lax(staged, limit)
    if solver is None:
        return ScanPlan(staged, Choice(None, why), stored=stored)
    choice = Choice(None, left_by(solver, why))
    return ScanPlan(staged, choice, fell_back=True, stored=stored)


def _replicated(body: Body) -> str | None:
    """An output whose type no solver's tangent has, see `replicated_output`."""
    outputs = [body.jaxpr.out_avals[k] for k in body.float_carry]
    outputs += [body.y_avals[j] for j in body.float_y]
    return replicated_output(outputs, filter(is_differentiable, body.jaxpr.in_avals))


def _choice(
    step: Step,
    solver: Solver | None,
    values: Pass,
    facts: Facts,
    limit: MemoryLimit | None,
) -> Choice:
    """The solver that was named, or that follows from what else was; or one that is chosen."""
    if solver is not None:
        why = step.not_batched
        one_by_one = "" if why is None else f"; steps are linearised one by one: {why}"
        return Choice(solver, f"named by the caller{one_by_one}")
    if step.given is not None:
        return values.choice(lambda: Choice(Sweep(), "a Jacobian is given"))
    question = Question(facts, lambda: step.work, step.key)
    return values.choice(lambda: choose(question, functools.partial(_refusal, step, limit)))


def _refusal(step: Step, limit: MemoryLimit | None, solver: Solver) -> str | None:
    """Why a solver that nobody named cannot take the steps, if it cannot.

    Args:
      step: the step.
      limit: see `make_plan`.
      solver: the solver.
    """
    if limit is not None:
        solver = solver.with_memory_limit(limit.bytes)
    linear, extra = step.linearise(formed=forms(solver))
    scan = LinearScan(linear, solver, step.length, step.reverse)
    try:
        if not linear.can_keep:
            solver.check_nothing_kept()
        for group in scan.groups if forms(solver) else ():
            operator = scan.restricted(group).operator_type(extra)
            solver.check(type(operator))
            solver.check_memory(scan.length, operator)
    except (NotImplementedError, ValueError) as error:
        return str(error)
    return None
