"""A scan over several places: one rule for the steps of each, see `Place.spread`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from parscan_bp.jaxprs.read import scan_counts
from parscan_bp.scan.loop import Extra, Loop
from parscan_bp.solvers.base import Solver
from parscan_bp.types import Array

Run = Callable[[Sequence[Array], Extra], tuple[list[Any], list[Any]]]
"""``(args, extra) -> (carry, ys)`` of a scan, ``args = [*consts, *init, *xs]``."""


def spread(loop: Loop, solver: Solver, run: Callable[[Solver, int], Run]) -> Run:
    """The scan of a loop wherever a solver wants its steps.

    Args:
      loop: the scan.
      solver: which one.
      run: ``(solver, n)`` -> a scan of n steps in one place.
    """
    place = solver.place
    obstacle = place.obstacle(loop.equation.params["jaxpr"].jaxpr)
    if obstacle is not None:
        raise NotImplementedError(f"f: solver={solver!r}: {obstacle}")
    consts, carry = scan_counts(loop.equation)
    inputs = len(loop.equation.invars) - consts - carry
    length, reverse = (loop.how[name] for name in ("length", "reverse"))

    @functools.cache
    def here(solver, n):
        call = run(solver, n)

        def scan(shared, init, xs):
            xs, states = xs[:inputs], xs[inputs:]
            return call([*shared[0], *init, *xs], Extra(shared[1], states))

        return scan

    run_each, run_rest = (functools.partial(here, of) for of in (solver, solver.here))
    everywhere = place.spread(run_each, run_rest, length, reverse=reverse)

    def call(args, extra):
        args, end = list(args), consts + carry
        whole = args[:consts], extra.jacobian
        return everywhere(whole, args[consts:end], [*args[end:], *extra.states])

    return call
