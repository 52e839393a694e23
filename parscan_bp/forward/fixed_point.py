"""Picard's iteration, also called nonlinear Jacobi: every step from the last pass's states."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from parscan_bp.arguments import set_ints
from parscan_bp.forward.base import Forward, Trajectory, over_steps, steps_to_forget
from parscan_bp.forward.vectors import guessed, settled
from parscan_bp.jaxprs.replay import varying_with


@dataclasses.dataclass(frozen=True, repr=False)
class FixedPoint(Forward):
    """All steps at once from the states of the pass before, until nothing changes.

    x_t <- f(x_{t-1}, u_t) for all t side by side, from a guess. After i passes the first i states
    are exact, so that n passes are enough; a pass costs one step of the batch of all n. It needs no
    derivative, and takes any step. An error shrinks as the step contracts: it pays for steps that
    forget their carry within a few.

    Args:
      guess: x_1..x_n to begin with, a pytree like the carry with leading axis n; ``None`` is x_0 at
        every step.
      max_passes: after so many it ends as not converged.

    Raises:
      TypeError, ValueError: if ``max_passes`` is no int of at least 1, or, when used, the guess no
        trajectory of the carry.

    Source: Naumov, "Parallel complexity of forward and backward propagation", 2017, section 3
    (iterative methods for the triangular system); Song, Meng, Liao, Ermon, "Accelerating
    feedforward computation via parallel nonlinear equation solving", ICML 2021 (Jacobi).

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.forward import FixedPoint, Recurrence
      >>> halved = Recurrence(lambda c, u: 0.5 * c + u, jnp.zeros(1), jnp.ones((3, 1)), 3)
      >>> made = FixedPoint().evaluate(halved, 1e-6)
      >>> made.states[:, 0].tolist(), int(made.iterations), bool(made.converged)
      ([1.0, 1.5, 1.75], 3, True)
    """

    guess: Any = dataclasses.field(default=None, repr=False)
    _: dataclasses.KW_ONLY
    max_passes: int = 100

    def __post_init__(self):
        super().__post_init__()
        set_ints(self, max_passes=1)

    def evaluate(self, recurrence, tolerance):
        def image(states):
            entering = recurrence.entering(states)
            return over_steps(recurrence.step, recurrence.length, entering, recurrence.inputs)

        def goes_on(loop):
            states, new, passes = loop
            finite = jnp.stack([jnp.isfinite(a).all() for a in jax.tree.leaves(new)]).all()
            return finite & (passes < self.max_passes) & ~settled(states, new, tolerance)

        def one_pass(loop):
            _, new, passes = loop
            return new, image(new), passes + 1

        start = guessed(self.guess, recurrence)
        first = start, image(start), varying_with(jnp.zeros((), jnp.int32), start)
        states, new, passes = lax.while_loop(goes_on, one_pass, first)
        return Trajectory(states, passes, settled(states, new, tolerance))

    def expected(self, length, exponent, tolerance):
        """As many passes as the step needs to forget."""
        needed = min(length, steps_to_forget(exponent, tolerance))
        return math.ceil(needed) if needed <= self.max_passes else None
