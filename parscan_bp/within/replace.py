"""`replace_scans`: every scan of a function by ours."""

from __future__ import annotations

import functools
from collections.abc import Callable

from parscan_bp.choice import choose
from parscan_bp.memory_limit import MemoryLimit
from parscan_bp.scan.traces import Traces
from parscan_bp.solvers import Solver
from parscan_bp.within.dispatch import Dispatch
from parscan_bp.within.program import Arguments, TracedFunction, call_with
from parscan_bp.within.replacement import Only, Replacement
from parscan_bp.within.rewrite import rewritten
from parscan_bp.within.sites import sites_of


def replace_scans(
    f: Callable | None = None,
    *,
    solver: Solver | None = None,
    otherwise: str = "lax",
    only: Only = None,
    memory_limit: int | MemoryLimit | None = None,
) -> Callable:
    """``f``, with the derivatives of all its scans by `parscan_bp.scan`; a decorator.

    The function is traced once for each structure and types of its arguments, as by `jax.jit`, and
    the equations of its scans are replaced: those of `jax.lax.scan`, of `jax.lax.fori_loop` with
    fixed bounds and of libraries that call them, also inside of `jax.jit`, `jax.checkpoint`,
    `jax.lax.cond`, `jax.lax.while_loop`, `jax.custom_jvp`, `jax.shard_map` and other scans. Every
    other operation is the one that ``f`` does. Values are those of ``f``; what it closes over is a
    constant, as of a function of `jax.jit`.

    A leaf of the carry that the steps fill row by row at an index which is known, as by
    ``Y.at[k].set(y)`` in a `jax.lax.fori_loop`, becomes an output of the scan.

    A scan stays as it is inside of a `jax.custom_vjp`, whose rule is the derivative, and where its
    step has effects, reads a mutable array or calls back to Python; so do all of a function that
    switches `jax.enable_x64` on by itself. A scan that ``f`` has
    differentiated itself is two scans without anything to solve: wrap what is differentiated, and
    not what differentiates.

    Args:
      f: pure function of pytrees. Leaves of its arguments that are no arrays are not traced.
      solver: as in `parscan_bp.scan`, for all of them.
      otherwise: what becomes of a scan that a named solver refuses: "lax" leaves it as it is,
        "raise" raises what the solver says, with the line of the scan.
      only: which scans are replaced, each by its number or its source, ``"file.py:line"``, as
        `explain_within` prints them; ``None`` for all.
      memory_limit: as in `parscan_bp.scan`, for each of them.

    Returns:
      The function; without ``f``, a decorator.

    Raises:
      What ``f`` raises.
      ValueError: if ``only`` names no scan of the function, or for a word that is not known.
      NotImplementedError: with ``otherwise="raise"``, if the solver cannot take a scan.

    Example:
      >>> import jax, jax.numpy as jnp, parscan_bp as pb
      >>> theirs = lambda a, n: jax.lax.fori_loop(0, 9, lambda k, h: jnp.sin(a * h) + n, n)
      >>> ours = pb.replace_scans(theirs)
      >>> bool(jax.grad(ours)(0.5, 1.0) == jax.grad(theirs)(0.5, 1.0))
      True
    """
    how = Replacement.of(solver, otherwise, only, memory_limit)
    if f is None:
        return functools.partial(_replaced, how)
    return _replaced(how, f)


def _replaced(how: Replacement, f: Callable) -> Callable:
    if not callable(f):
        raise TypeError(f"f: got {type(f).__name__}; a function is wanted")

    def call(named, arrays):
        return call_with(f, named, arrays)

    traces = Traces(call, TracedFunction)

    @functools.wraps(f)
    def replaced(*args, **kwargs):
        given = Arguments(args, kwargs)
        state = how, choose.state()
        make = functools.partial(_with_ours, how)
        program = traces.plan(given.how, (given.arrays,), make, state)
        return f(*args, **kwargs) if program is None else program(given.arrays)

    return replaced


def _with_ours(how: Replacement, traced: TracedFunction) -> TracedFunction | None:
    """The program with its scans replaced; ``None`` if the function is left as it is."""
    if traced.obstacle is not None:
        return None
    sites = sites_of(traced.closed)
    how.check(sites)
    by_scan = Dispatch(how, sites)
    return TracedFunction(rewritten(traced.closed, by_scan), traced.out_tree)
