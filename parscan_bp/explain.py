"""What a scan will do, and why, without running it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from parscan_bp.arguments import as_array, described
from parscan_bp.chain.api import plan_chain
from parscan_bp.chain.stages import Stages
from parscan_bp.choice.facts import Facts
from parscan_bp.devices import Traffic
from parscan_bp.forward import Auto, Forward
from parscan_bp.linearise.linear_step import LinearStep
from parscan_bp.memory_limit import MemoryLimit
from parscan_bp.planner import Plan
from parscan_bp.scan.api import (
    checked_solver,
    left_to_lax,
    loop_options,
    parameters_of,
    plan_of,
)
from parscan_bp.scan.native_loops import native_loops
from parscan_bp.scan.plan import Left, PlanOrLeft, ScanPlan
from parscan_bp.scan.plan_record import recorded_plans, traced_anew
from parscan_bp.scan.segments import segmented
from parscan_bp.scan.values.auto import ForwardChoice, by_method, choose_forward
from parscan_bp.scan.values.base import Values
from parscan_bp.scan.values.kernels import Fused
from parscan_bp.scan.values.options import checked_forward
from parscan_bp.solvers import Associative, Blelloch, Chunked, Planned, Sharded, Solver, Sweep
from parscan_bp.types import Array, PyTree


@dataclasses.dataclass(frozen=True)
class Candidate:
    """The predicted cost of one solver for the bi-diagonal system, Jacobians included.

    Attributes:
      solver: the solver.
      steps: operations on the critical path.
      flops: floating-point operations of all workers.
      bytes: bytes of the operators alive at once.
    """

    solver: Solver
    steps: int
    flops: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The decision about a scan; ``str()`` is a table.

    Attributes:
      choice: the solver as text, "lax.scan" for `jax.lax.scan` itself.
      reason: why.
      structure: "diagonal", "block" or "dense"; ``None`` where it was not looked for.
      batch_axes: for each float leaf of the carry, the axes whose entries are independent.
      columns: tangents that an explicit Jacobian takes.
      mixed_by: primitives that couple entries of the carry.
      stored: what is kept from the forward pass for derivatives.
      candidates: predicted costs, that of the solver among them.
      collectives: of a solver over several devices, what each takes part in, by its purpose.
      forward: what makes the values with ``forward="auto"``.
      fused: what ``forward="fused"`` would change, where it was neither asked for nor impossible.
      native: where native functions are asked for on a CPU, which loops are some, and why one is
        not.
      linear_step: of a solver by products, the transposed linear map of a step as two programs:
        what is made of all steps ahead of the loop, and what the loop does. ``print`` it.
    """

    choice: str
    reason: str
    structure: str | None
    batch_axes: tuple[tuple[int, ...], ...]
    columns: int
    mixed_by: tuple[str, ...]
    stored: str
    candidates: tuple[Candidate, ...]
    collectives: Mapping[str, Traffic] = dataclasses.field(default_factory=dict)
    forward: ForwardChoice | None = None
    fused: str | None = None
    native: str | None = None
    linear_step: LinearStep | None = dataclasses.field(default=None, repr=False)

    def __str__(self):
        lines = [] if self.forward is None else [str(self.forward)]
        lines += [f"derivatives by {self.choice}: {self.reason}"]
        lines += [line for line in (self.fused, self.native) if line is not None]
        if self.structure is not None:
            lines.append(
                f"Jacobian: {self.structure}, {self.columns} columns per batch entry, "
                f"batch axes {self.batch_axes}, coupled by {', '.join(self.mixed_by) or 'nothing'}"
            )
        lines.append(f"stored: {self.stored}")
        told = [f"{k} {v.collectives} of {v.bytes} bytes" for k, v in self.collectives.items()]
        lines += [f"collectives: {', '.join(told)}"] if told else []
        if self.candidates:
            lines.append(f"{'solver':<14}{'steps':>10}{'flops':>12}{'bytes':>12}")
        for c in self.candidates:
            name = type(c.solver).__name__
            lines.append(f"{name:<14}{c.steps:>10}{c.flops:>12.2e}{c.bytes:>12.2e}")
        return "\n".join(lines)


def explain(
    f: Callable,
    init: PyTree,
    xs: PyTree = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    *,
    solver: Solver | None = None,
    forward: str | Fused | Forward | Auto = "exact",
    jacobian: str | Callable = "auto",
    memory_limit: int | MemoryLimit | None = None,
    reset: Any = None,
    seq_lengths: Any = None,
) -> Explanation:
    """What `scan` with the same arguments would do: chosen by structure, sizes and platform.

    Args:
      f, init, xs, length, reverse, unroll, solver, forward, jacobian, memory_limit, reset,
        seq_lengths: as in `scan`. Arrays may be `jax.ShapeDtypeStruct`.

    Returns:
      The decision with its reason, and for every solver the predicted steps, flops and
      bytes of the bi-diagonal solve (BPPSA eqs. 6 and 7 times the cost of a product). Under
      an outer `jax.vmap` the mapped axis is not seen. With ``forward="auto"`` the decision on the
      values, too: for that a few of the steps are run, where there are arrays.

    Raises:
      As `scan`. Of a layer it is the method ``explain`` of an `RNN`, of any other function
      `explain_within`.

    Example:
      >>> import jax.numpy as jnp, parscan_bp as pb
      >>> step = lambda h, x: (jnp.tanh(0.5 * h + x), h)
      >>> pb.explain(step, jnp.zeros(3), jnp.zeros((8, 3))).structure
      'diagonal'
    """
    if reset is not None or seq_lengths is not None:
        f, xs = segmented(f, init, xs, length, reset, seq_lengths)
    solver = checked_solver(solver, jacobian, memory_limit)
    values = checked_forward(forward)
    if length is None and not jax.tree.leaves(xs):
        raise ValueError(
            f"xs: got {described(xs)}, without length=; a step f(carry, x) is scanned over xs. Of "
            "an RNN its own method explain says what it does; of any function explain_within"
        )
    how = loop_options(length, reverse, unroll)
    left = left_to_lax(solver, jacobian, values.by)

    def plan_with(by):
        return plan_of(f, init, xs, how, solver, jacobian, by, memory_limit)[0]

    plan = Left(left) if left is not None else plan_with(values.by)
    forward_choice = None
    if values.auto is not None:
        args = jax.tree.leaves((parameters_of(f)[1], init, xs))
        forward_choice = choose_forward(plan, args, values.auto, plan_with, always_probe=True)
        if isinstance(forward_choice.forward, Forward):
            plan = plan_with(by_method(values.auto, forward_choice.forward))
    found = explained(plan)
    no_question = left is not None or solver is not None or forward != "exact"
    fused = None if no_question else _fused_instead(plan_with)
    return dataclasses.replace(found, forward=forward_choice, fused=fused)


def _fused_instead(plan_with: Callable[[Values], Any]) -> str | None:
    """What there is to gain by the fused forward pass, if the step and the device allow it."""
    fused = checked_forward("fused").by
    if fused.gain is None:
        return None
    try:
        plan_with(fused)
    except (NotImplementedError, ValueError):
        return None
    return fused.gain


def explain_calls(fun: Callable[..., Any], *args: PyTree) -> tuple[Explanation, ...]:
    """`explain` for every scan of ours that a function runs, those of its layers among them.

    Args:
      fun: a function of arrays: a layer of `parscan_bp.linen`, a loss, a training step. It is
        traced, what it calls of `jax.jit` and `jax.checkpoint` anew.
      args: its arguments, pytrees of arrays or of `jax.ShapeDtypeStruct`.

    Returns:
      An explanation for each scan, in the order in which they are traced.

    Raises:
      TypeError: if ``fun`` is no function, or an argument no arrays.
      ValueError: if it runs no scan of ours.

    Example:
      >>> import jax.numpy as jnp, parscan_bp as pb
      >>> def loss(w, xs):
      ...     return pb.scan(lambda h, x: (jnp.tanh(h @ w + x), h), jnp.zeros((4, 8)), xs)[1].sum()
      >>> (found,) = explain_calls(loss, jnp.eye(8), jnp.ones((50, 4, 8)))
      >>> found.structure
      'block'
    """
    if not callable(fun):
        raise TypeError(f"fun: got {described(fun)}; a function of arrays is wanted")
    args = tuple(
        jax.tree.map(lambda leaf, k=k: as_array(f"args[{k}]", leaf), arg)
        for k, arg in enumerate(args)
    )
    with recorded_plans() as plans:
        traced_anew(fun, *args)
    return all_explained(fun, plans)


def all_explained(fun: Callable[..., Any], plans: Sequence[PlanOrLeft]) -> tuple[Explanation, ...]:
    """The plans of the scans that a function ran.

    Raises:
      ValueError: if there are none.
    """
    if not plans:
        raise ValueError(f"fun: got {described(fun)}, which runs no scan of parscan_bp")
    return tuple(map(explained, plans))


def explained(plan: PlanOrLeft) -> Explanation:
    """What a plan does."""
    return _left_to_lax(plan.reason) if isinstance(plan, Left) else _explanation(plan)


def _left_to_lax(why: str) -> Explanation:
    """Of a call in which nothing is looked at."""
    return Explanation("lax.scan", why, None, (), 0, (), "nothing", ())


def explain_chain(
    layers: Sequence[Any],
    params: Sequence[PyTree],
    x: Array,
    *,
    solver: Planned | Sharded | None = None,
) -> Plan | Stages:
    """What `chain` does for the gradient of the parameters, and what else it might do.

    Args:
      layers, params, x: as in `chain`. Arrays may be `jax.ShapeDtypeStruct`.
      solver: whose plan; ``None`` is ``Planned()``. It may be `Sharded`.

    Returns:
      The plan: ``str()`` is a table of its products with their structures, non-zero numbers,
      flops, bytes and predicted cost, and of the same for back-propagation by VJPs, the linear
      scan, and Algorithm 1 of BPPSA whole and truncated. ``.steps``, ``.outlook`` and
      ``.baselines`` hold the numbers. Of a `Sharded` solver, the layers of each device, how many
      of them cotangents pass one after the other (``.depth``), and what goes between devices.

    Raises:
      TypeError: if ``solver`` is another solver.
      As `chain`, and as `Planned`.

    Example:
      >>> import jax, jax.numpy as jnp, parscan_bp as pb
      >>> from parscan_bp.layers import Linear, init
      >>> layers = [Linear(8), jax.nn.relu, Linear(1)]
      >>> params = init(layers, jax.random.key(0), (3,))
      >>> plan = pb.explain_chain(layers, params, jnp.ones((4, 3)))
      >>> plan.outlook.flops, plan.baselines["BP"].flops
      (96, 96)
    """
    return plan_chain(layers, params, x, solver)


def _explanation(plan: ScanPlan) -> Explanation:
    s = None if plan.step is None else plan.step.structure
    stored = "what lax.scan stores" if plan.stored is None else str(plan.stored)
    if plan.rule is not None:
        body = plan.rule.loop.body
        own = body.num_carry - len(set(body.forwarded.values()))
        stored = f"the carries: {own} of {body.num_carry} leaves beside the outputs"
        found = plan.rule.stored if plan.rule.scan.solver.place.is_one else None
        if found is not None:
            stored = str(found) if found.sizes else f"{stored}: about {found.bytes:,} bytes"
        slow = ", and of the linearised steps what is slow to make again"
        stored += slow if plan.rule.keeps else ""
        once = ", and what the step makes of its constants alone, which is made once"
        stored += once if plan.rule.loop.hoist is not None else ""
    step = None if plan.rule is None else plan.rule.scan.linear_step
    return Explanation(
        choice=str(plan.choice),
        reason=plan.choice.reason,
        structure=None if s is None else s.kind,
        batch_axes=() if s is None else s.batch_axes,
        columns=0 if plan.facts is None else plan.facts.columns,
        mixed_by=() if s is None else s.mixed_by,
        stored=stored,
        candidates=() if plan.facts is None else _candidates(plan.facts, plan.choice.solver),
        collectives=_collectives(plan),
        native=native_loops(plan, step),
        linear_step=step,
    )


def _collectives(plan: ScanPlan) -> Mapping[str, Traffic]:
    """What a solver sends between devices, for the whole batch; a method's rounds are not known."""
    facts, solver = plan.facts, plan.choice.solver
    if facts is None or solver is None:
        return {}
    vector = facts.batch * facts.itemsize * facts.features
    matrix = vector * (1 if facts.structure == "diagonal" else facts.features)
    sent = dict(solver.place.traffic(matrix + vector, vector, facts.length))
    if plan.rule is not None and not plan.rule.loop.values.in_steps:
        sent.pop("forward", None)
    return sent


def _candidates(facts: Facts, chosen: Solver | None) -> tuple[Candidate, ...]:
    """Each solver's operations times the flops and bytes of one, for the whole batch.

    The chosen one is among them, one of another kind behind the usual ones.
    """
    solvers: list[Solver] = [Sweep(), Chunked(), Blelloch(), Associative()]
    if chosen is not None and type(chosen) not in map(type, solvers):
        solvers.append(chosen)
    h, b = facts.features, facts.batch
    diagonal = facts.structure == "diagonal"
    vector = b * (2 * h if diagonal else 2 * h * h)
    matrix = b * (h if diagonal else 2 * h**3)
    operator = b * facts.itemsize * (h if diagonal else h * h)
    found = []
    for solver in solvers:
        c = solver.complexity(facts.length)
        flops = c.vector_products * vector + c.matrix_products * matrix
        found.append(Candidate(solver, c.steps, flops, c.operators * operator))
    return tuple(found)
