"""The scan inside a function of somebody else, its derivatives by a solver."""

from __future__ import annotations

from collections.abc import Callable

import jax

from parscan_bp.autodiff.plan import Plan, make_plan
from parscan_bp.autodiff.scan import plans_of, settings
from parscan_bp.autodiff.stage import stage_call
from parscan_bp.solvers import Solver
from parscan_bp.types import PyTree


def solve_within(f: Callable, *args: PyTree, solver: Solver | None = None) -> PyTree:
    """``f(*args)``, with the derivatives of its last `jax.lax.scan` by a solver.

    The function is traced, and the equation of its scan is replaced; every other operation
    is the one that ``f`` does. What was traced is kept as long as ``f`` lives, so a function
    that lives on is traced once for each structure and types of its arguments.

    Args:
      f: pure function of pytrees, which calls `jax.lax.scan`.
      *args: its arguments.
      solver: as in `parscan_bp.scan`. With ``None``, a scan that is better left to
        `jax.lax.scan` is left to it.

    Returns:
      The result of ``f``.

    Raises:
      What ``f`` raises.
      NotImplementedError: if a named solver cannot take the step.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from parscan_bp.autodiff import solve_within
      >>> from parscan_bp.solvers import Blelloch
      >>> theirs = lambda a, xs: jax.lax.scan(lambda h, x: (a * h + x, h), 0.0, xs)[0]
      >>> ours = lambda a, xs: solve_within(theirs, a, xs, solver=Blelloch())
      >>> float(jax.grad(ours)(2.0, jnp.ones(3)))
      5.0
    """
    leaves, tree = jax.tree.flatten(args)
    plan = _plan_within(f, args, (tree, tuple(map(jax.typeof, leaves)), solver, *settings()))
    return f(*args) if plan is None else plan(leaves)


def _plan_within(f, args, key) -> Plan | None:
    solver, cache = key[2], plans_of(f)
    if cache is not None and key in cache:
        return cache[key]
    staged = stage_call(f, *args)
    if staged is None:
        return None
    plan = make_plan(staged, f, solver=solver)
    if cache is not None and not any(isinstance(v, jax.core.Tracer) for v in staged.consts):
        cache[key] = plan
    return plan
