"""`autotune`: the solvers of a scan raced on this machine, and the winner remembered."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Sequence

import jax

from parscan_bp.arguments import check_number, described
from parscan_bp.choice.rules import by_rules
from parscan_bp.choice.work import work_of
from parscan_bp.originals import lax_scan
from parscan_bp.scan.api import loop_options, plan_of, scan
from parscan_bp.scan.plan import Left
from parscan_bp.tuning.candidates import LAX, candidates
from parscan_bp.tuning.program import GROUPS, compiled, drawn, opened
from parscan_bp.tuning.result import Tuning, decide
from parscan_bp.types import PyTree

UNROLLED = (4, 16)
"""Steps per iteration with which `jax.lax.scan` takes part, too."""


def autotune(
    step: Callable,
    init: PyTree,
    xs: PyTree = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    *,
    wrt: Sequence[str] = GROUPS,
    budget_s: float = 10.0,
    progress: bool = True,
) -> Tuning:
    """Races the solvers of a scan, value and gradient, and remembers the winner on this machine.

    From then on `scan` with ``solver=None`` takes it for this step, these types and about this
    length, in later processes, too; what was compiled before stays as it is. It is remembered only
    where its whole 95 % interval is 5 % better than what the rules choose. `jax.lax.scan` takes
    part unrolled, too, to be seen: ``unroll=`` is the caller's.

    Args:
      step, init, xs, length, reverse, unroll: as in `scan`. Arrays of ``init`` and ``xs`` may be
        `jax.ShapeDtypeStruct`: then numbers are drawn.
      wrt: what is differentiated, some of "params" (the arrays that the step closes over, or the
        parameters of ``functools.partial(cell, params)``), "init" and "xs".
      budget_s: seconds for the timing; compilation comes on top.
      progress: whether progress is shown on stderr.

    Returns:
      The result; ``print`` it.

    Raises:
      ValueError, TypeError: for an option that is not known, for traced values, or a scan of which
        there is nothing to choose.
      As `scan`.

    Example:
      >>> import jax.numpy as jnp, parscan_bp as pb
      >>> step = lambda h, x: (jnp.tanh(h @ (jnp.eye(8) / 2) + x), h)
      >>> carry, xs = jnp.zeros((4, 8)), jnp.ones((50, 4, 8))
      >>> found = pb.autotune(step, carry, xs, budget_s=0, progress=False)
      >>> found.by_rules in {timing.name for timing in found.timings}
      True
    """
    if isinstance(wrt, str) or not wrt or any(name not in GROUPS for name in wrt):
        raise ValueError(f"wrt: got {wrt!r}; some of {GROUPS} are wanted, in a tuple")
    check_number("budget_s", budget_s)
    how = loop_options(length, reverse, unroll)
    init, xs = jax.tree.map(drawn, (init, xs))
    plan, _ = plan_of(step, init, xs, how, None, "auto")
    if isinstance(plan, Left) or plan.facts is None:
        why = plan.reason if isinstance(plan, Left) else plan.choice.reason
        raise ValueError(f"step: got {described(step)}, of which there is nothing to choose: {why}")
    body = plan.body
    chosen = by_rules(plan.facts, work_of(body.jaxpr, body.num_consts, body.num_carry))
    solvers = candidates(plan.facts)
    solvers.setdefault(str(chosen), chosen.solver)
    params, step_of = opened(step, init, xs)
    if any(isinstance(v, jax.core.Tracer) for v in jax.tree.leaves((params, init, xs))):
        raise ValueError(
            "autotune: got traced values, of which nothing can be timed; call it outside of jit "
            "and grad, or give jax.ShapeDtypeStruct"
        )
    scans = {
        name: functools.partial(lax_scan, **how)
        if solver is None
        else functools.partial(scan, **how, solver=solver)
        for name, solver in solvers.items()
    }
    for k in UNROLLED:
        scans[f"{LAX}, unroll={k}"] = functools.partial(lax_scan, **how | {"unroll": k})
    point = {"params": params, "init": init, "xs": xs}
    programs = {
        name: functools.partial(compiled, run, step_of, tuple(wrt), point)
        for name, run in scans.items()
    }
    with told(progress) as tell:
        return decide(programs, solvers, LAX, str(chosen), plan.key, budget_s, tell)


@contextlib.contextmanager
def told(progress: bool) -> Iterator[Callable[[str], None]]:
    """What shows progress: one line, written over where stderr is a terminal."""
    if not progress:
        yield lambda text: None
        return
    ends = "" if sys.stderr.isatty() else "\n"
    last = ""

    def tell(text: str) -> None:
        nonlocal last
        if text != last:
            print(f"\rautotune: {text:<60}", end=ends, file=sys.stderr, flush=True)
        last = text

    yield tell
    print(file=sys.stderr)
