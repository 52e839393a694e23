"""A scan over several places: one rule for the steps of each, see `Solver.spread`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from parscan_bp.jaxprs.read import scan_counts
from parscan_bp.scan.loop import Loop
from parscan_bp.solvers.base import Solver
from parscan_bp.types import Array, PyTree

Run = Callable[[Sequence[Array], PyTree], tuple[list[Any], list[Any]]]
"""``(args, extra) -> (carry, ys)`` of a scan, ``args = [*consts, *init, *xs]``."""


def spread(loop: Loop, solver: Solver, run: Callable[[Solver, int], Run]) -> Run:
    """The scan of a loop wherever a solver wants its steps.

    Args:
      loop: the scan.
      solver: which one.
      run: ``(solver, n)`` -> a scan of n steps in one place.
    """
    obstacle = solver.obstacle(loop.equation.params["jaxpr"].jaxpr)
    if obstacle is not None:
        raise NotImplementedError(f"f: {obstacle}")
    consts, carry = scan_counts(loop.equation)
    length, reverse = (loop.how[name] for name in ("length", "reverse"))

    @functools.cache
    def here(solver, n):
        call = run(solver, n)
        return lambda shared, init, xs: call([*shared[0], *init, *xs], shared[1])

    everywhere = solver.spread(here, length, reverse=reverse)

    def call(args, extra):
        args, end = list(args), consts + carry
        return everywhere((args[:consts], extra), args[consts:end], args[end:])

    return call
