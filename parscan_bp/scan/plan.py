"""What will be done with a scan: its body, its structure, its linearisation, its solver."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from parscan_bp import kernels
from parscan_bp.choice import wisdom
from parscan_bp.choice.choose import choose
from parscan_bp.choice.facts import Choice, Facts
from parscan_bp.choice.rules import ON_CHIP
from parscan_bp.choice.work import work_of
from parscan_bp.jaxprs.hoist import Hoist
from parscan_bp.jaxprs.obstacles import replicated_output
from parscan_bp.jaxprs.read import is_differentiable, scan_counts
from parscan_bp.jaxprs.replay import bind
from parscan_bp.jaxprs.stage import Staged
from parscan_bp.linearise.base import Linearisation, Steps
from parscan_bp.linearise.body import Body
from parscan_bp.linearise.cell import CellJacobian, CellProducts, OfCell
from parscan_bp.linearise.check import check_operator
from parscan_bp.linearise.columns import ByColumns
from parscan_bp.linearise.given import Given, batch_axes_given
from parscan_bp.linearise.layout import CarryLayout
from parscan_bp.linearise.products import ByProducts
from parscan_bp.scan.fused import Fused, fused_loop
from parscan_bp.scan.rule import ScanRule
from parscan_bp.solvers import Solver, Sweep, TreeSolver
from parscan_bp.structure import (
    ALONG_MAPPED_AXIS,
    CarryStructure,
    check_structure,
    couples_mapped_axis,
    find_structure,
    is_holomorphic,
    unsupported,
)
from parscan_bp.structure.base import Reason
from parscan_bp.trees import is_sharded, nbytes
from parscan_bp.types import PyTree


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """A decided scan.

    Attributes:
      staged: the traced call.
      body: its body, see `ScanRule` on what is hoisted out of it.
      choice: the solver, or ``None`` for `lax.scan` itself, and why.
      structure: what was found about the Jacobian, where it was looked for.
      rule: the differentiation rule, ``None`` for `lax.scan` itself.
      facts: what the choice was made from.
      extra: values that a given Jacobian closes over.
      key: by which a measurement is remembered, where there was a choice.
    """

    staged: Staged
    body: Body
    choice: Choice
    structure: CarryStructure | None
    rule: ScanRule | None
    facts: Facts | None = None
    extra: Sequence[Any] = ()
    key: str | None = None

    def __call__(self, args: Sequence[Any]) -> PyTree:
        """Runs the call; without a rule, as it was traced."""
        rule = self.rule
        if rule is None:
            return self.staged.run(args, lambda values: bind(self.staged.equation, values))
        extra = [jax.lax.stop_gradient(v) for v in self.extra]
        return self.staged.run(args, lambda values: rule(values, extra))

    def check_jacobian(self, args: Sequence[Any]) -> None:
        """Compares what is assumed about the Jacobian with its products at the first step.

        Raises:
          ValueError: naming an entry that contradicts it; or if the values are traced.
        """
        rule, structure = self.rule, self.structure
        if rule is None or structure is None:
            return
        if getattr(rule.linearisation, "diagonal", False):
            structure = dataclasses.replace(structure, diagonal=True)
        if any(isinstance(v, jax.core.Tracer) for v in (*args, *self.staged.consts)):
            raise ValueError(
                "check_jacobian: needs concrete values; call scan outside jit and grad"
            )

        def probe(values):
            n, carried = scan_counts(self.staged.equation)
            consts, carry, xs = values[:n], values[n : n + carried], values[n + carried :]
            if rule.hoist is not None:
                consts = rule.hoist.consts(consts)
            first = -1 if self.staged.equation.params["reverse"] else 0
            x = [v[first] for v in xs]
            key = jax.random.key(0)
            check_structure(self.body.jaxpr, structure, consts, carry, x, key)
            check_operator(rule.linearisation, consts, carry, x, self.extra, key)
            return self.staged.equation.primitive.bind(*values, **self.staged.equation.params)

        self.staged.run(args, probe)


def make_plan(
    staged: Staged,
    trees: tuple[Any, Any, Any] | None = None,
    *,
    cell: OfCell | None = None,
    solver: Solver | None,
    jacobian: str | Callable = "auto",
    forward: Fused | None = None,
    may_keep: bool = False,
) -> Plan:
    """Decides how the derivatives of a traced scan are computed.

    Args:
      staged: the traced call.
      trees: pytree structures of the parameters, the carry and the inputs; only a given
        Jacobian needs them.
      cell: the cell that the body is, if it is known to be one.
      solver: a named solver, or ``None``.
      jacobian: a name that `scan` takes, or a function.
      forward: the fused kernels, or ``None`` for the values of `lax.scan`.
      may_keep: see `Facts`.

    Raises:
      NotImplementedError: if a named solver or the fused kernels cannot take the body.
      ValueError: if a given Jacobian does not fit the carry.
    """
    params = staged.equation.params
    body, hoist = Body(params["jaxpr"], *scan_counts(staged.equation)), None
    if not body.float_carry or params["length"] == 0:
        why = "no step carries a derivative: there is nothing to solve"
        return Plan(staged, body, Choice(None, why), None, None)
    obstacle = staged.symbolic_size
    if solver is None and forward is None:
        outputs = [body.jaxpr.out_avals[k] for k in body.float_carry]
        outputs += [body.y_avals[j] for j in body.float_y]
        inputs = filter(is_differentiable, body.jaxpr.in_avals)
        left = obstacle or replicated_output(outputs, inputs)
        if left is not None:
            return Plan(staged, body, Choice(None, left), None, None)
    if cell is not None and any(is_sharded(v.aval) for v in staged.equation.invars):
        cell = None  # its products join arrays that may be spread in different ways
    if cell is None:
        hoist = Hoist.of_step(body.jaxpr, body.num_consts)
    if hoist is not None:
        body = Body(hoist.body, body.num_consts + len(hoist.made.out_avals), body.num_carry)
    loop = None
    if forward is not None:
        adjoins = solver is None and jacobian == "auto"
        loop = fused_loop(forward, body, cell, reverse=params["reverse"], adjoins=adjoins)
    reasons = _reasons(body, solver, jacobian)
    if callable(jacobian):
        reasons = [r for r in reasons if r.primitive != "custom_vjp_call"]
    if reasons:
        if solver is not None:
            raise NotImplementedError(
                f"solver={solver!r}: the step contains {reasons[0].primitive}: "
                f"{reasons[0].message}; solver=None runs such a step through jax.lax.scan"
            )
        why = f"the step contains {reasons[0].primitive}: {reasons[0].message}"
        return Plan(staged, body, Choice(None, why), None, None)
    structure = find_structure(body.jaxpr, body.num_consts, body.num_carry)
    linear, extra = _linearisation(body, structure, cell, trees, solver, jacobian)
    if solver is not None and not (isinstance(linear, ByProducts) and loop is None):
        solver.check_nothing_kept()
    facts = _facts(body, structure, linear, params)
    chosen = solver is None and jacobian == "auto" and loop is None
    if cell is not None:
        on_chip = chosen and _on_chip(body, cell, params["length"])
        facts = dataclasses.replace(facts, may_keep=may_keep, on_chip=on_chip)
    key = None
    if solver is not None:
        choice = Choice(solver, "named by the caller")
    elif loop is not None and loop.adjoins:
        choice = Choice(Sweep(), "forward-mode; the backward pass is one fused kernel")
    elif loop is not None:
        choice = Choice(Sweep(), "the forward pass is a fused kernel, the Jacobian is given")
    elif callable(jacobian):
        choice = Choice(Sweep(), "a Jacobian is given")
    else:
        key = wisdom.key_of(body.jaxpr, params["length"], params["unroll"], may_keep=facts.may_keep)
        work = work_of(body.jaxpr, body.num_consts, body.num_carry)
        choice = choose(facts, work, key)
    if choice.solver is None:
        return Plan(staged, body, choice, structure, None, facts, key=key)
    if chosen and isinstance(choice.solver, TreeSolver):
        linear, extra = _linearisation(body, structure, cell, trees, choice.solver, jacobian)
    rule = ScanRule(staged.equation, linear, choice.solver, loop, chosen, obstacle, hoist)
    return Plan(staged, body, choice, structure, rule, facts, extra, key)


def _reasons(body: Body, solver: Solver | None, jacobian: str | Callable) -> list[Reason]:
    """Why a step cannot be solved so. What works along a mapped axis is left to `lax.scan`, too,
    but for a solver that was named, which takes it where its Jacobians say all."""
    reasons = unsupported(body.jaxpr)
    if solver is None:
        return reasons
    along = [r for r in reasons if r.message == ALONG_MAPPED_AXIS]
    reasons = [r for r in reasons if r not in along]
    if along and (isinstance(solver, TreeSolver) or jacobian != "auto"):
        coupled = couples_mapped_axis(body.jaxpr, body.num_consts, body.num_carry)
        reasons += [] if coupled is None else [coupled]
    return reasons


def _linearisation(
    body, structure, cell, trees, solver, jacobian
) -> tuple[Linearisation, Sequence[Any]]:
    shapes = tuple(body.carry_avals[k].shape for k in body.float_carry)
    dtypes = tuple(body.carry_avals[k].dtype for k in body.float_carry)
    if cell is not None and jacobian == "auto":
        if not isinstance(solver, TreeSolver):
            return CellProducts(body, cell), ()
        batch = tuple(tuple(range(len(s) - 1)) for s in shapes)
        layout = CarryLayout(shapes, dtypes, batch, _all_complex(dtypes))
        return CellJacobian(body, layout, cell), ()
    if callable(jacobian):
        return _given(body, shapes, dtypes, trees, jacobian)
    if jacobian == "auto" and not isinstance(solver, TreeSolver):
        return ByProducts(body), ()
    diagonal = jacobian == "diagonal" or (jacobian == "auto" and structure.diagonal)
    keep = _all_complex(dtypes) and is_holomorphic(body.jaxpr.jaxpr, body.num_carry)
    diagonal = diagonal and (
        keep or not any(jnp.issubdtype(d, jnp.complexfloating) for d in dtypes)
    )
    layout = CarryLayout(shapes, dtypes, structure.batch_axes, keep)
    return ByColumns(body, layout, diagonal), ()


def _all_complex(dtypes) -> bool:
    return all(jnp.issubdtype(d, jnp.complexfloating) for d in dtypes)


def _given(body, shapes, dtypes, trees, jacobian):
    """A caller's function as a linearisation, its closed-over values made explicit."""
    _, carry_tree, x_tree = trees
    if carry_tree.num_leaves != body.num_carry:
        raise ValueError(
            "jacobian: the step never changes some leaf of the carry, so it has no Jacobian; "
            "close over that leaf instead of carrying it"
        )

    def struct(avals):
        return [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]

    carry = jax.tree.unflatten(carry_tree, struct(body.carry_avals))
    x = jax.tree.unflatten(x_tree, struct(body.x_avals))
    closed, shape = jax.make_jaxpr(jacobian, return_shape=True)(carry, x, carry)
    rank = len(batch_axes_given(shape))
    layout = CarryLayout(shapes, dtypes, tuple(tuple(range(rank)) for _ in shapes), False)
    size = sum(layout.features) if all(len(s) >= rank for s in shapes) else None
    if size is None or tuple(shape.shape) != (size, size):
        raise ValueError(
            f"jacobian: the operator is {shape.shape[0]}x{shape.shape[1]} with batch axes "
            f"{shape.stack_shape}; for carry leaves of shapes {shapes} the transposed Jacobian "
            f"with those batch axes is {size}x{size}"
        )
    tree = jax.tree.structure(shape)

    def call(extra, carry, x, new_carry):
        run = jaxpr_as_fun(ClosedJaxpr(closed.jaxpr, list(extra)))
        return jax.tree.unflatten(tree, run(*carry, *x, *new_carry))

    return Given(body, layout, call), tuple(closed.consts)


def _on_chip(body: Body, cell: OfCell, length: int) -> bool:
    """See `Facts`; several GPUs may share the arrays, of which a kernel knows nothing."""
    # What is looked at first needs no import of kernels.
    if jax.default_backend() != "gpu" or jax.device_count() > 1:
        return False
    if kernels.unusable(interpret=False) is not None:
        return False

    def jacobians(consts, carry, x):
        return cell.jacobian(Steps(consts, carry, x, carry, cell.params(consts)))

    stacked = [
        [jax.ShapeDtypeStruct((length, *a.shape), a.dtype) for a in avals]
        for avals in (body.carry_avals, body.x_avals)
    ]
    operator = jax.eval_shape(jacobians, list(body.const_avals), *stacked)
    # With bfloat16 no kernel was run on a GPU yet.
    return operator.dtype == jnp.float32 and ON_CHIP.takes(operator)


def _facts(body, structure, linear, params) -> Facts:
    avals = [body.carry_avals[k] for k in body.float_carry]
    layout = CarryLayout(
        tuple(a.shape for a in avals), tuple(a.dtype for a in avals), structure.batch_axes, False
    )
    kind = "matrix-free" if isinstance(linear, ByProducts) else "columns"
    if isinstance(linear, CellJacobian | CellProducts | Given):
        kind = "analytic"
    return Facts(
        platform=jax.default_backend(),
        length=params["length"],
        batch=functools.reduce(lambda a, b: a * b, layout.batch_shape, 1),
        features=sum(layout.features),
        leaves=len(avals),
        itemsize=layout.dtype.itemsize,
        structure=structure.kind,
        linearisation=kind,
        equations=len(body.jaxpr.jaxpr.eqns),
        touched=body.nbytes + nbytes(list(body.jaxpr.in_avals)),
        jax_version=jax.__version_info__[:2],
    )
