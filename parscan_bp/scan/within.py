"""The scan inside a function of somebody else, its derivatives by a solver."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from parscan_bp.cells import View
from parscan_bp.choice import choose
from parscan_bp.forward import Auto, Forward
from parscan_bp.jaxprs.read import scan_counts
from parscan_bp.jaxprs.stage import Staged
from parscan_bp.linearise.cell import CellBody
from parscan_bp.report import report_on_values
from parscan_bp.scan.api import checked_solver, left_to_lax, within
from parscan_bp.scan.custom_vjp import by_custom_vjp
from parscan_bp.scan.decide import make_plan, or_left
from parscan_bp.scan.plan import Left, ScanPlan
from parscan_bp.scan.traces import TracesOf, plan_anew
from parscan_bp.scan.values.auto import decided
from parscan_bp.scan.values.kernels import Fused
from parscan_bp.scan.values.options import checked_forward
from parscan_bp.solvers import Solver
from parscan_bp.types import PyTree


def solve_within(
    f: Callable,
    *args: PyTree,
    solver: Solver | None = None,
    forward: str | Fused | Forward | Auto = "exact",
    memory_limit: int | None = None,
    view: View | None = None,
    anew: bool = False,
    report: bool = False,
    custom_vjp: bool = False,
) -> PyTree:
    """``f(*args)``, with the derivatives of its last `jax.lax.scan` by a solver.

    The function is traced, and the equation of its scan is replaced; every other operation
    is the one that ``f`` does. What was traced is kept as long as ``f`` lives, so a function
    that lives on is traced once for each structure and types of its arguments, as by `jax.jit`.

    Args:
      f: pure function of pytrees, which calls `jax.lax.scan`.
      *args: its arguments.
      solver: as in `parscan_bp.scan`. With ``None``, a scan that is better left to
        `jax.lax.scan` is left to it, and of a known cell may be stored what `jax.lax.scan` would
        store.
      forward: as in `parscan_bp.scan`; "fused" wants a ``view``.
      memory_limit: as in `parscan_bp.scan`.
      view: the cell that the step of the scan is, where that is known. Then ``f`` returns a pair:
        its result, and the parameters of ``view`` as they enter the scan. The cell's Jacobian is
        used if the traced step is one that `View.describes`.
      anew: whether ``f`` is traced at every call, because it may read what is no argument and
        changes.
      report: as in `parscan_bp.scan`.
      custom_vjp: whether the call is one `jax.custom_vjp`, see `by_custom_vjp`.

    Returns:
      The result of ``f``, without parameters; with ``report=True``, a pair of it and a `Report`.

    Raises:
      What ``f`` raises.
      NotImplementedError: if a named solver, or ``forward``, cannot take the step or the device.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from parscan_bp.scan.within import solve_within
      >>> from parscan_bp.solvers import Blelloch
      >>> theirs = lambda a, xs: jax.lax.scan(lambda h, x: (a * h + x, h), 0.0, xs)[0]
      >>> ours = lambda a, xs: solve_within(theirs, a, xs, solver=Blelloch())
      >>> float(jax.grad(ours)(2.0, jnp.ones(3)))
      5.0
    """
    if custom_vjp:
        how: dict[str, Any] = {
            "solver": solver,
            "forward": forward,
            "memory_limit": memory_limit,
            "view": view,
        }
        run = functools.partial(solve_within, f, **how, anew=anew, report=report)
        return by_custom_vjp(run, *args)
    solver = checked_solver(solver, "auto", memory_limit)
    values = checked_forward(forward, report)
    left = left_to_lax(solver, "auto", values.by)
    plan_with = lambda by: _plan_within(f, args, solver, by, memory_limit, view, anew)  # noqa: E731
    plan = Left(left) if left else plan_with(values.by)
    leaves = jax.tree.leaves(args)
    values, plan = decided(values, plan, leaves, plan_with)
    if isinstance(plan, Left):
        result = f(*args)
        told = report_on_values(result, fell_back=plan.fell_back) if report else None
    else:
        result, told = plan(leaves, guess=values.guess, report=report)
    result = result if view is None else result[0]
    return (result, told) if report else result


def _call_of(get: Callable[[], Callable]) -> Callable:
    """What is traced: the function, with `jax.lax.scan` in it whatever that has become."""

    def call(_, *args):
        with within():
            return get()(*args)

    return call


_OF_FUNCTIONS = TracesOf(_call_of)


def _plan_within(f, args, solver, values, memory_limit, view, anew) -> ScanPlan | Left:
    def make(staged):
        cell = None if view is None else _cell_of(staged, view)
        options = {"solver": solver, "values": values, "memory_limit": memory_limit}
        return make_plan(staged, cell=cell, **options)

    def plan():
        traces = None if anew else _OF_FUNCTIONS(f)
        if traces is None:
            return plan_anew(_call_of(lambda: f), None, args, make)
        return traces.plan(None, args, make, (solver, values, memory_limit, view, choose.state()))

    return or_left(plan, solver, values)


def _cell_of(staged: Staged, view: View) -> CellBody | None:
    """The body of the scan as the cell of a view; ``None`` where it is anything else."""
    _, params = staged.out_tree.children()
    variables = staged.outer.outvars[staged.out_tree.num_leaves - params.num_leaves :]
    positions = staged.const_positions(variables)
    consts, carry = scan_counts(staged.equation)
    # One parameter in two places would need its cotangents added up.
    every_const_once = sorted(k for k in positions if k is not None) == list(range(consts))
    leaves = len(staged.body.in_avals) - consts - carry
    if None in positions or not every_const_once or (carry, leaves) != (len(view.carry), 1):
        return None
    if not view.describes(staged.body):
        return None
    own = jax.eval_shape(lambda: view.cell.initial_carry((), 1))
    trees = (params, jax.tree.structure(own), jax.tree.structure(0))
    gates = view.gates_of(staged.body)
    return CellBody(view.cell, positions, view.carry, trees, view.params, gates)
