"""`scan`: the contract of `jax.lax.scan`, derivatives by a solver."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax import lax

from parscan_bp.arguments import as_int
from parscan_bp.autodiff.fused import Fused, checked_forward
from parscan_bp.autodiff.given import check_jacobian_argument
from parscan_bp.autodiff.of_cell import OfCell
from parscan_bp.autodiff.plan import Plan, make_plan
from parscan_bp.autodiff.stage import stage
from parscan_bp.cells import Cell
from parscan_bp.solvers import Solver, TreeSolver, check_solver
from parscan_bp.types import PyTree


def scan(
    f: Callable,
    init: PyTree,
    xs: PyTree = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    *,
    _split_transpose: bool = False,
    solver: Solver | None = None,
    forward: str | Fused = "exact",
    jacobian: str | Callable = "auto",
    memory_limit: int | None = None,
    check_jacobian: bool = False,
) -> tuple[PyTree, PyTree]:
    """`jax.lax.scan` with derivatives by the solution of a bi-diagonal system.

    Values are those of `jax.lax.scan`, by the same traced loop, unless ``forward`` asks for
    others. Its derivatives, of every order and mode, come from

        lambda_{t-1} = g_{t-1} + J_t^T lambda_t        (BPPSA eq. 3)

    solved by ``solver``, and from batched products for parameters and inputs. The carries
    are stored, and nothing else (not twice where they are outputs already); wrap the scan
    in `jax.checkpoint` to store nothing, or name ``Sweep(recompute=False)`` to store what is
    slow to make again, too (``solver=None`` does for steps of a few numbers, for gates of a
    single input feature, for the few steps of a larger gated cell and, from jax 0.12 on, for most
    gated cells on a single row). What the step makes of its constants alone, such as a transposed
    weight matrix, is made once where the scan is differentiated, as by `jax.lax.scan`.
    Forward-mode alone, where ``solver=None`` chose `Sweep`, is `jax.lax.scan`'s own loop and
    stores nothing.

    Args:
      f: step ``(carry, x) -> (carry, y)``. ``functools.partial(cell, params)`` with a cell
        of `parscan_bp.cells` is linearised by the cell's own Jacobian.
      init, xs, length, reverse, unroll: as in `jax.lax.scan`.
      _split_transpose: likewise, where the scan is left to `jax.lax.scan`; a solver always
        splits the gradients of parameters and inputs from the cotangents of the carry.
      solver: a solver, or ``None`` to choose by structure, sizes and platform. A step that
        the linear model does not hold (a ``custom_vjp``, a loop of dynamic length, effects)
        then runs through `jax.lax.scan` itself. So does a step that is mostly work, which a
        solver would make slower (`explain` says why), and a scan with symbolic sizes
        (`jax.export`), of which a named solver takes the values only; and one with collectives
        along a mapped axis, which a named solver takes unless it forms Jacobians that they couple.
      forward: "exact", the values of `jax.lax.scan`; or "fused", one GPU kernel for all steps
        of an `Elman`, `GRU` or `LSTM` of `parscan_bp.cells` in float32 or bfloat16, with float32
        accumulation (`Fused` has its options). With ``solver=None`` the backward pass is such a
        kernel, too. Its values differ by rounding: in float32, with S the largest of
        1 + |x| |W_i| + |h| |W_h| + |b| + |carry|, a step from the same carry is within
        (inputs + H + 16) eps S (1 + S) of exact arithmetic, as `jax.lax.scan` at highest
        precision is; what the next steps make of it is the recurrence's own condition.
        bfloat16 carries are rounded when they leave the kernel, not between the steps.
      jacobian: "auto", "dense" or "diagonal" for Jacobians by automatic differentiation, or
        a function ``(carry, x, new_carry) -> operator`` that returns the transposed Jacobian
        of one step, on the carry's leaves joined along their features, leading axes being
        batch axes.
      memory_limit: bytes that a solver which forms Jacobians may use, an int; replaces the
        solver's own limit. The axes of an outer `jax.vmap` are not seen: each of its entries
        may use so many.
      check_jacobian: debug check. Compares the structure found, or the Jacobian given, with
        random products at the first step, and raises with the offending entry.

    Returns:
      ``(carry, ys)`` as `jax.lax.scan`.

    Raises:
      TypeError, ValueError: as `jax.lax.scan`; or for an option that is not known.
      NotImplementedError: if a named solver, or ``forward``, cannot take the step or the device.

    Example:
      >>> import jax, jax.numpy as jnp, parscan_bp as pb
      >>> step = lambda h, x: (jnp.tanh(0.5 * h + x), h)
      >>> jax.grad(lambda xs: pb.scan(step, 0.0, xs)[0])(jnp.zeros(3)).tolist()
      [0.25, 0.5, 1.0]
    """
    solver = checked_solver(solver, jacobian, memory_limit)
    fused = checked_forward(forward)
    how = loop_options(length, reverse, unroll, _split_transpose)
    plan, args = plan_of(f, init, xs, how, solver, jacobian, fused)
    if plan is None or plan.rule is None:
        return lax.scan(f, init, xs, **how)
    if check_jacobian:
        plan.check_jacobian(args)
    return plan(args)


def loop_options(length, reverse, unroll, _split_transpose=False) -> dict[str, Any]:
    """The arguments of `jax.lax.scan` that say how to loop, by name."""
    names = ("length", "reverse", "unroll", "_split_transpose")
    return dict(zip(names, (length, reverse, unroll, _split_transpose), strict=True))


def checked_solver(solver, jacobian, memory_limit) -> Solver | None:
    """The solver under the call's memory limit, the options of the call being valid."""
    check_solver(solver, "uniform")
    check_jacobian_argument(jacobian)
    if memory_limit is None:
        return solver
    limit = as_int("memory_limit", memory_limit)
    return solver.with_memory_limit(limit) if isinstance(solver, TreeSolver) else solver


def _as_cell(f: Callable) -> tuple[Cell | None, PyTree]:
    """The cell and parameters of ``functools.partial(cell, params)``."""
    if isinstance(f, functools.partial) and isinstance(f.func, Cell):
        if len(f.args) == 1 and not f.keywords:
            return f.func, f.args[0]
    return None, None


def plan_of(
    f, init, xs, how: Mapping[str, Any], solver, jacobian, forward=None
) -> tuple[Plan | None, list]:
    """The plan of a call and its flat arguments; from the cache where the step came before.

    ``how`` holds the `loop_options`.
    """
    cell, params = _as_cell(f)
    args, tree = jax.tree.flatten((params, init, xs))
    try:
        if how["length"] is not None:
            how = {**how, "length": int(how["length"])}
        # With the type: unroll=True is not unroll=1.
        loop = tuple((name, type(value), value) for name, value in how.items())
        options = (loop, solver, jacobian, forward, *settings())
        key = (tree, tuple(map(jax.typeof, args)), options)
        cache = plans_of(f if cell is None else cell)
        if cache is not None and key in cache:
            return cache[key], args
        staged = stage(cell or f, params, init, xs, how)
    except Exception:
        # A mistake in the call is reported by lax.scan, in its own words.
        lax.scan(f, init, xs, **how)
        raise
    if staged is None:
        return None, args
    trees: tuple[Any, Any, Any] = (
        jax.tree.structure(params),
        jax.tree.structure(init),
        jax.tree.structure(xs),
    )
    of_cell = None
    if cell is not None:
        leading = staged.const_positions(staged.outer.invars[: trees[0].num_leaves])
        of_cell = OfCell(cell, leading, tuple(range(trees[1].num_leaves)), trees)
    plan = make_plan(staged, trees, cell=of_cell, solver=solver, jacobian=jacobian, forward=forward)
    held = (*staged.consts, *plan.extra)
    if cache is not None and not any(isinstance(v, jax.core.Tracer) for v in held):
        cache[key] = plan
    return plan, args


_PLANS: weakref.WeakKeyDictionary[Any, dict] = weakref.WeakKeyDictionary()


def plans_of(f) -> dict | None:
    """The plans made for a step function, as long as it lives; ``None`` if it cannot be a key."""
    try:
        return _PLANS.setdefault(f, {})
    except TypeError:
        return None


def settings() -> tuple:
    """Settings of JAX that a traced step depends on."""
    names = ("jax_enable_x64", "jax_default_matmul_precision", "jax_numpy_dtype_promotion")
    return tuple(getattr(jax.config, name) for name in names)
