"""A short stretch of a scan, run for what it says of the whole."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from parscan_bp.forward import Recurrence
from parscan_bp.forward.exponent import Forgetting, forgetting
from parscan_bp.linearise.body import Body

SHARE, LEAST, MOST = 32, 16, 128
"""One of so many steps is probed, but so many at least, and at most."""


class Probe:
    """How a scan forgets, over its first steps.

    Args:
      equation: the traced scan.

    Attributes:
      steps: how many of them.
    """

    def __init__(self, equation: Any):
        self._equation = equation
        length = equation.params["length"]
        self.steps = min(length, max(LEAST, min(MOST, length // SHARE)))

    def __call__(self, operands: Sequence[Any]) -> tuple[float, float]:
        """The rates of `Forgetting`, for the arguments of the equation, none of which is traced."""
        exponent, approach = self._run(list(operands))
        return float(exponent), float(approach)

    @functools.cached_property
    def _run(self) -> Callable[[list[Any]], Forgetting]:
        equation, n = self._equation, self.steps
        body = Body.of_scan(equation)
        cut = slice(-n, None) if equation.params["reverse"] else slice(n)

        @jax.jit
        def run(operands):
            consts, init, xs = body.split(operands)
            step = lambda carry, x: body(consts, carry, x)[0]  # noqa: E731
            xs = [a[cut] for a in xs]
            xs = [a[::-1] for a in xs] if equation.params["reverse"] else xs
            return forgetting(Recurrence(step, init, xs, n))

        return run
