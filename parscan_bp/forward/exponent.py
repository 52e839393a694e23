"""How fast a recurrence forgets: its largest Lyapunov exponent, and whether it comes back.

A small difference between two trajectories grows as e^(lambda t). Where lambda is negative it is
forgotten, and methods that begin with a guess need few iterations; where it is positive they need
as many as there are steps, or nearly so. A guess is no small difference, though: where there are
several places to settle in, each trajectory forgets all that is near it and nothing else. So one is
begun anew, from x_0 as the guesses are, and it is seen whether it comes back to the other one.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from parscan_bp.forward.base import Carry, Recurrence
from parscan_bp.forward.certificate import magnitude, with_true_derivative
from parscan_bp.originals import lax_scan
from parscan_bp.report import cotangents
from parscan_bp.types import Array

COINCIDE = 64
"""Roundings of 1 + |x| within which two trajectories are the same."""


class Forgetting(NamedTuple):
    """How a recurrence forgets, in rates per step.

    Attributes:
      exponent: the largest Lyapunov exponent, of all rows together.
      approach: log(|y - x|) per step of a trajectory y that began anew; minus infinity if it
        coincides with x at the end.
    """

    exponent: Array
    approach: Array


def forgetting(recurrence: Recurrence) -> Forgetting:
    """How a recurrence forgets, from products J_t v and a second trajectory.

    A tangent with pseudo-random signs is pushed along the trajectory, v_t = J_t v_{t-1}. Its growth
    over the second half of the steps is told: during the first it turns into the direction that
    grows most. In the second half there is the other trajectory, too.

    Args:
      recurrence: a short one; the whole of it is run, one step after the other.

    Returns:
      The `Forgetting`; NaN where anything is not finite. The logarithm of what has vanished is that
      of the smallest number.

    Source: Benettin, Galgani, Giorgilli, Strelcyn, Meccanica 15 (1980), for the exponent.

    Example:
      >>> import jax.numpy as jnp
      >>> halved = Recurrence(lambda x, u: 0.5 * x + u, jnp.zeros(3), jnp.ones((8, 3)), 8)
      >>> [round(float(rate), 3) for rate in forgetting(halved)]  # log 0.5
      [-0.693, -0.693]
    """
    f, init = with_true_derivative(recurrence), recurrence.init
    half = recurrence.length // 2

    def push(x, v, u):
        x, v = jax.jvp(lambda x: f(x, u), (x,), (v,))
        size = magnitude(v)
        size = jnp.maximum(size, jnp.finfo(size.dtype).tiny)
        # By the largest entry: its square might leave the range.
        return x, jax.tree.map(lambda a: a / size.astype(a.dtype), v), jnp.log(size)

    def alone(state, u):
        x, v = state
        return push(x, v, u)[:2], None

    def in_pairs(state, u):
        x, v, y = state
        x, v, grown = push(x, v, u)
        return (x, v, f(y, u)), grown

    signs = [jnp.sign(a) for a in cotangents(jax.tree.leaves(init))]
    start = init, jax.tree.unflatten(jax.tree.structure(init), signs)
    early, late = (
        jax.tree.map(lambda a: a[cut], recurrence.inputs)
        for cut in (slice(half), slice(half, None))
    )
    (x, v), _ = lax_scan(alone, start, early, length=half)
    rest = recurrence.length - half
    (last, _, other), grown = lax_scan(in_pairs, (x, v, init), late, length=rest)
    before, after = _gap(x, init), _gap(last, other)
    rate = jnp.log(after / before) / rest
    eps = jnp.finfo(after.dtype).eps
    same = after <= COINCIDE * eps * (1 + magnitude(last))
    return Forgetting(jnp.mean(grown), jnp.where(same, -jnp.inf, rate))


def _gap(a: Carry, b: Carry) -> Array:
    return magnitude(jax.tree.map(jnp.subtract, a, b))
