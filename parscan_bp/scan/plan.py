"""What will be done with a scan: its body, its structure, its linearisation, its solver."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from parscan_bp.choice import wisdom
from parscan_bp.choice.choose import Question, choose
from parscan_bp.choice.facts import Choice, Facts
from parscan_bp.choice.work import Work, work_of
from parscan_bp.jaxprs.batching import NOT_KNOWN
from parscan_bp.jaxprs.hoist import Hoist
from parscan_bp.jaxprs.obstacles import replicated_output
from parscan_bp.jaxprs.read import is_differentiable, scan_counts
from parscan_bp.jaxprs.replay import bind
from parscan_bp.jaxprs.stage import NEEDS_VALUES, Staged, is_jit_disabled
from parscan_bp.linearise.base import Linearisation
from parscan_bp.linearise.body import Body
from parscan_bp.linearise.cell import CellBody
from parscan_bp.report import report_on_values
from parscan_bp.scan import forward_wisdom
from parscan_bp.scan.forward_wisdom import RememberedForward
from parscan_bp.scan.fused import Fused, FusedLoop
from parscan_bp.scan.jacobian_check import JacobianCheck
from parscan_bp.scan.jacobians import linearisation_of
from parscan_bp.scan.linear_scan import LinearScan
from parscan_bp.scan.loop import Extra, Loop
from parscan_bp.scan.parallel import Parallel, ParallelLoop, checked_guess
from parscan_bp.scan.probe import Probe
from parscan_bp.scan.read_facts import facts_of
from parscan_bp.scan.rule import ScanRule
from parscan_bp.solvers import Solver, Sweep
from parscan_bp.structure import (
    ALONG_MAPPED_AXIS,
    CarryStructure,
    couples_mapped_axis,
    find_structure,
    unsupported,
)
from parscan_bp.structure.base import Reason
from parscan_bp.trees import is_sharded
from parscan_bp.types import PyTree


@dataclasses.dataclass(frozen=True, eq=False)
class ScanPlan:
    """A decided scan.

    Attributes:
      staged: the traced call.
      body: its body, see `Loop` on what is hoisted out of it.
      choice: the solver, or ``None`` for `lax.scan` itself, and why.
      structure: what was found about the Jacobian, where it was looked for.
      rule: the differentiation rule, ``None`` for `lax.scan` itself.
      facts: what the choice was made from.
      work: what the step does, read when it is asked for first; where there are facts.
      extra: values that a given Jacobian closes over.
      fell_back: whether a named solver leaves the call to `lax.scan`.
      check: what `check_jacobian` runs; ``None`` where the linear model does not hold the step.
    """

    staged: Staged
    body: Body
    choice: Choice
    structure: CarryStructure | None = None
    rule: ScanRule | None = None
    facts: Facts | None = None
    work: Callable[[], Work] | None = None
    extra: Sequence[Any] = ()
    fell_back: bool = False
    check: JacobianCheck | None = None

    @functools.cached_property
    def measured(self) -> RememberedForward | None:
        """What was measured of its forward pass by methods. A later plan looks again."""
        return None if self.key is None else forward_wisdom.recall(self.key)

    @functools.cached_property
    def probe(self) -> Probe:
        """What is asked of a stretch of it."""
        return Probe(self.staged.equation)

    @property
    def key(self) -> str | None:
        """By which a measurement is remembered, where there is a choice."""
        return None if self.facts is None else _key(self.staged, self.body, self.facts)

    def __call__(
        self, args: Sequence[Any], *, guess: PyTree = None, report: bool = False
    ) -> tuple[PyTree, Any]:
        """Runs the call, without a rule as it was traced; its result, and the report on it.

        Args:
          args: of the call, flat.
          guess: what a method of the forward pass begins with; ``None`` where there is nothing.
          report: whether there is one.
        """
        rule, told = self.rule, None
        length = self.staged.equation.params["length"]
        leaves = [] if guess is None else checked_guess(guess, self.body, length)
        extra = Extra(*jax.lax.stop_gradient((list(self.extra), leaves)))

        def run(values):
            nonlocal told
            if rule is None:
                outs = bind(self.staged.equation, values)
                told = report_on_values(outs, fell_back=self.fell_back) if report else None
            elif report:
                outs, told = rule.reported(values, extra)
            else:
                outs = rule(values, extra)
            return outs

        return self.staged.run(args, run), told

    def check_jacobian(self, args: Sequence[Any]) -> None:
        """The check of the plan, if there is one.

        Raises:
          ValueError: naming what contradicts the step's derivative; or if the values are traced.
        """
        check = self.check
        if check is None:
            return
        if any(isinstance(v, jax.core.Tracer) for v in (*args, *self.staged.consts)):
            raise ValueError(
                "check_jacobian: needs concrete values; call scan outside jit and grad"
            )

        def run(values):
            check(values)
            return self.staged.equation.primitive.bind(*values, **self.staged.equation.params)

        self.staged.run(args, run)


@dataclasses.dataclass(frozen=True)
class Left:
    """A call that is left to `lax.scan` with nothing planned.

    Attributes:
      reason: why.
      fell_back: see `ScanPlan`.
    """

    reason: str
    fell_back: bool = False
    rule: None = None
    extra: tuple[()] = ()

    def check_jacobian(self, args: Sequence[Any]) -> None:
        """Nothing is assumed."""


PlanOrLeft = ScanPlan | Left


def or_left(
    plan: Callable[[], PlanOrLeft | None], solver: Solver | None, forward: Fused | Parallel | None
) -> PlanOrLeft:
    """The plan of a call; or that there is none, as of a step that looks at its values."""
    try:
        made = plan()
    except NEEDS_VALUES:
        leaves = solver is not None and solver.leaves_to_lax and forward is None
        if not (leaves and is_jit_disabled()):
            raise
        return Left(left_by(solver, IN_PYTHON), fell_back=True)  # type: ignore[arg-type]
    if made is None and (forward is not None or (solver is not None and not solver.leaves_to_lax)):
        raise NotImplementedError(
            f"solver={solver!r}, forward={forward!r}: the function was traced, and has no loop of "
            "jax.lax.scan that they could be used for"
        )
    return Left("no loop is left to trace") if made is None else made


IN_PYTHON = "jax.disable_jit is on, and the steps are run by Python, one after the other"


def make_plan(
    staged: Staged,
    trees: tuple[Any, Any, Any] | None = None,
    *,
    cell: CellBody | None = None,
    solver: Solver | None,
    jacobian: str | Callable = "auto",
    forward: Fused | Parallel | None = None,
    memory_limit: int | None = None,
) -> PlanOrLeft:
    """Decides how the derivatives of a traced scan are computed.

    Args:
      staged: the traced call.
      trees: pytree structures of the parameters, the carry and the inputs; only a given
        Jacobian needs them.
      cell: the cell that the body is, if it is known to be one.
      solver: a named solver, or ``None``.
      jacobian: a name that `scan` takes, or a function.
      forward: what makes the values, or ``None`` for those of `lax.scan`.
      memory_limit: that of a solver which is chosen; ``None`` for its own.

    Raises:
      NotImplementedError: if a named solver or forward pass cannot take the body.
      ValueError: if a given Jacobian does not fit the carry.
    """
    may_be_left = forward is None and (solver is None or solver.leaves_to_lax)
    if staged.hi_type is not None:
        if not may_be_left:
            raise NotImplementedError(f"solver={solver!r}, forward={forward!r}: {staged.hi_type}")
        told = staged.hi_type if solver is None else left_by(solver, staged.hi_type)
        return Left(told, fell_back=solver is not None)
    params, traced = staged.equation.params, Body(staged.body, *scan_counts(staged.equation))
    if forward is not None:
        forward.check(staged, traced)
    if not traced.float_carry or params["length"] == 0:
        nothing = "no step carries a derivative: there is nothing to solve"
        return ScanPlan(staged, traced, Choice(None, nothing))
    obstacle = staged.symbolic_size
    why = obstacle or _replicated(traced) if may_be_left else None
    if why is not None:
        return _left(staged, traced, solver, why)
    body, cell, hoist = _step(staged, traced, cell)
    adjoins = solver is None and jacobian == "auto"
    other = None if forward is None else forward.loop(body, cell, params, adjoins=adjoins)
    fused = None if other is None else other.kernels
    why = _not_linear(body, solver, jacobian) or (_not_batched(body) if may_be_left else None)
    if why is not None:
        if not may_be_left:
            raise NotImplementedError(
                f"solver={solver!r}: {why}; solver=None runs such a step through jax.lax.scan"
            )
        return _left(staged, body, solver, why)
    structure = find_structure(body.jaxpr, body.num_consts, body.num_carry)
    linearise = functools.partial(linearisation_of, body, structure, cell, trees, jacobian)
    linear, extra = linearise(formed=_forms(solver))
    if solver is not None and not (linear.can_keep and other is None):
        solver.check_nothing_kept()
    may_form, ours = adjoins and fused is None, adjoins and other is None
    facts = facts_of(params, body, structure, linear, cell, may_form=may_form)
    work = functools.cache(functools.partial(work_of, body.jaxpr, body.num_consts, body.num_carry))
    refusal = functools.partial(_refusal, linearise, params, memory_limit)
    choice = _choice(staged, body, solver, jacobian, other, facts, work, refusal)
    if choice.solver is not None and memory_limit is not None:
        limited = choice.solver.with_memory_limit(memory_limit)
        choice = dataclasses.replace(choice, solver=limited)
    if may_form and _forms(choice.solver):
        linear, extra = linearise(formed=True)
    stated = [linear] if cell is None or jacobian != "auto" else _all_stated(linearise)
    order = params["length"], params["reverse"]
    check = JacobianCheck(body, hoist, structure, stated, extra, *order)
    if choice.solver is None:
        return ScanPlan(staged, body, choice, structure, None, facts, work, check=check)
    linear, answered = linear.answered()
    loop = Loop(staged.equation, body, choice.solver, hoist, other, answered)
    if forward is not None and loop.is_placed:
        forward.check_placed(choice.solver)
    scan = LinearScan(linear, choice.solver, params["length"], params["reverse"], fused)
    rule = ScanRule(loop, scan, ours, obstacle)
    return ScanPlan(staged, body, choice, structure, rule, facts, work, extra, check=check)


def _all_stated(linearise: Callable[..., tuple[Linearisation, Any]]) -> list[Linearisation]:
    """All that a cell states: what one solver does not use of it, another does."""
    return [linearise(formed=formed)[0] for formed in (False, True)]


def left_by(solver: Solver, why: str) -> str:
    """The reason of a call that a named solver leaves, as its caller said."""
    return f"{solver!r} leaves it to lax.scan: {why}"


def _left(staged: Staged, body: Body, solver: Solver | None, why: str) -> ScanPlan:
    """The plan of a call that is left to `lax.scan`."""
    if solver is None:
        return ScanPlan(staged, body, Choice(None, why))
    return ScanPlan(staged, body, Choice(None, left_by(solver, why)), fell_back=True)


def _forms(solver: Solver | None) -> bool:
    """Whether the solver needs the Jacobians formed."""
    return solver is not None and solver.needs == "operators"


def _replicated(body: Body) -> str | None:
    """An output whose type no solver's tangent has, see `replicated_output`."""
    outputs = [body.jaxpr.out_avals[k] for k in body.float_carry]
    outputs += [body.y_avals[j] for j in body.float_y]
    return replicated_output(outputs, filter(is_differentiable, body.jaxpr.in_avals))


def _step(
    staged: Staged, traced: Body, cell: CellBody | None
) -> tuple[Body, CellBody | None, Hoist | None]:
    """The step that is linearised: as the cell that it is, or what is left in the loop of it."""
    if cell is not None and any(is_sharded(v.aval) for v in staged.equation.invars):
        cell = None  # its products join arrays that may be spread in different ways
    if cell is not None and traced.unbatchable is not None:
        cell = None  # what it states is of many steps at once
    hoist = Hoist.of_step(traced.jaxpr, traced.num_consts) if cell is None else None
    if hoist is None:
        return traced, cell, None
    consts = traced.num_consts + len(hoist.made.out_avals)
    return Body(hoist.body, consts, traced.num_carry), None, hoist


def _not_linear(body: Body, solver: Solver | None, jacobian: str | Callable) -> str | None:
    """What in the step the linear model does not hold, if anything.

    A given Jacobian stands for that of a ``custom_vjp``. What works along a mapped axis is left to
    `lax.scan`, too, but for a solver that was named, which takes it where its Jacobians say all and
    its rounds do not vary: entries would wait for one another.
    """
    reasons = unsupported(body.jaxpr)
    if callable(jacobian):
        reasons = [r for r in reasons if r.primitive != "custom_vjp_call"]
    if solver is not None and not solver.rounds_vary:
        along = [r for r in reasons if r.message == ALONG_MAPPED_AXIS]
        reasons = [r for r in reasons if r not in along]
        reasons += _coupled(body) if along and (_forms(solver) or jacobian != "auto") else []
    return f"the step contains {reasons[0].primitive}: {reasons[0].message}" if reasons else None


def _not_batched(body: Body) -> str | None:
    """What in the step keeps many of them from being linearised as one batch, if anything."""
    name = body.unbatchable
    return None if name is None else f"the step contains {name}, which {NOT_KNOWN}"


def _coupled(body: Body) -> list[Reason]:
    found = couples_mapped_axis(body.jaxpr, body.num_consts, body.num_carry)
    return [] if found is None else [found]


def _choice(
    staged: Staged,
    body: Body,
    solver: Solver | None,
    jacobian: str | Callable,
    other: FusedLoop | ParallelLoop | None,
    facts: Facts,
    work: Callable[[], Work],
    refusal: Callable[[Solver], str | None],
) -> Choice:
    """The solver that was named, or that follows from what else was; or one that is chosen."""
    if solver is not None:
        why = _not_batched(body)
        one_by_one = "" if why is None else f"; steps are linearised one by one: {why}"
        return Choice(solver, f"named by the caller{one_by_one}")
    fused = None if other is None else other.kernels
    if fused is not None:
        values = "forward-mode; the backward pass is one fused kernel"
        given = "the forward pass is a fused kernel, the Jacobian is given"
        return Choice(Sweep(), values if fused.adjoins else given)
    if callable(jacobian):
        return Choice(Sweep(), "a Jacobian is given")
    choice = choose(Question(facts, work, _key(staged, body, facts)), refusal)
    if other is not None and (choice.solver is None or choice.solver.keeps):
        return Choice(Sweep(), "the forward pass is a method's, and keeps the carries alone")
    return choice


def _refusal(
    linearise: Callable[..., tuple[Linearisation, Sequence[Any]]],
    params: dict[str, Any],
    memory_limit: int | None,
    solver: Solver,
) -> str | None:
    """Why a solver that nobody named cannot take the steps, if it cannot.

    Args:
      linearise: makes the linearisation, as `linearisation_of`.
      params: of the scan's equation.
      memory_limit: see `make_plan`.
      solver: the solver.
    """
    if memory_limit is not None:
        solver = solver.with_memory_limit(memory_limit)
    linear, extra = linearise(formed=_forms(solver))
    scan = LinearScan(linear, solver, params["length"], params["reverse"])
    try:
        if not linear.can_keep:
            solver.check_nothing_kept()
        for group in scan.groups if _forms(solver) else ():
            operator = scan.restricted(group).operator_type(extra)
            solver.check(type(operator))
            solver.check_memory(scan.length, operator)
    except (NotImplementedError, ValueError) as error:
        return str(error)
    return None


def _key(staged: Staged, body: Body, facts: Facts) -> str:
    """By which a measurement of the scan is remembered."""
    unroll = staged.equation.params["unroll"]
    return wisdom.key_of(body, facts.length, unroll)
