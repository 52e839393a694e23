"""The estimate of a trajectory's error: two linear solves, products of J_t with vectors only.

The first is Newton's step, L d = r, at the trajectory x; the second that at x - d, from its own
residuals, L d2 = r2. As x - d is wrong by the square of what x is, d2 is what d has missed, to
first order. With D and D2 the largest of each,

    |x - x*|  is taken to be  1.25 (D + 2 D2),

and nothing is said where D2 is not small beside D: there the second step would need a third one.

Both know the slopes of the side that x is on. Where an error or rounding may reach a kink of the
step, its other side counts as well, see `kinks`.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from parscan_bp.forward.base import Carry, Recurrence
from parscan_bp.forward.certificate import (
    Certificate,
    magnitude,
    with_true_derivative,
)
from parscan_bp.forward.chunks import Chunks
from parscan_bp.forward.kinks import departure, kinks_of
from parscan_bp.forward.rounding import roundings_of
from parscan_bp.report import cotangents
from parscan_bp.types import Array

FACTOR = 1.25
"""By which the sum is enlarged."""

CURVED = 0.25
"""The largest D2 / D of which anything is said, but for what rounding makes of both."""

DRAWS = 4
"""Right-hand sides of roundings with signs of their own, two in each linear solve: of a thousand
systems one was understated by two draws, in the second digit."""

ENLARGED = 1.5
"""By which the largest of what they become is enlarged."""

REACH = 2
"""By which more than the errors is looked at for kinks: the draws have not met the largest."""

STRAIGHT = 0.01
"""The largest floor that is told, relative to 1 + the largest magnitude of a carry."""

SETTLED = 2.0**-17
"""What the linear solves leave, beside the largest residual: four digits and more."""

SWEEP = Chunks(rounds=4)
"""What solves: the error's equation is a recurrence itself, and forgets as the other one does."""


def estimate(recurrence: Recurrence, states: Carry, residuals: Carry, radius: Array) -> Certificate:
    """An estimate of the error of a trajectory: likely, not proved.

    Of a step that jumps, as by a comparison, it says nothing where an error may reach the jump.

    Args:
      recurrence: the recurrence.
      states: x_1..x_n.
      residuals: r_1..r_n.
      radius: the error that is allowed; nothing is made of it.

    Returns:
      The `Certificate`. Its floor is what a right-hand side of roundings with pseudo-random signs
      becomes, one and a half times, and of four such the largest: where all errors end in one
      direction, those of some may happen to cancel.

    Source: the a-posteriori estimate by Newton's method of Kantorovich's theorem; of 600 random
    systems two were understated without the factor, in the third digit.

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.forward import Recurrence
      >>> half = Recurrence(lambda x, u: 0.5 * x + u, jnp.zeros(()), jnp.ones(9), 9)
      >>> wrong = jnp.zeros(9).at[0].set(1.0)
      >>> residuals = half.residuals(wrong)
      >>> round(float(estimate(half, wrong, residuals, 1.0).error), 3)  # 1.25 times
      2.495
    """
    step, size = with_true_derivative(recurrence), functools.partial(_size, recurrence)
    solve = functools.partial(_solve, recurrence, step, recurrence.entering(states))
    unit = size(residuals)
    signs = _signed(roundings_of(recurrence, states, residuals))
    roundings = size(signs[0])

    def beside(unit):
        return lambda r, *s: jnp.stack([_over(r, unit), *(_over(a, roundings) for a in s)], 1)

    found, settled = solve(jax.tree.map(beside(unit), residuals, *signs[: DRAWS // 2]))
    d = jax.tree.map(lambda a: a[:, 0] * unit.astype(a.dtype), found)
    left = recurrence.residuals(jax.tree.map(jnp.subtract, states, d))
    second_unit = size(left)
    second, again = solve(jax.tree.map(beside(second_unit), left, *signs[DRAWS // 2 :]))

    def of_leaf(a, b):
        """D, D2 and the floor."""
        drawn = [recurrence.largest(magnitude(v[:, 1:])) for v in (a, b)]
        parts = (unit, a), (second_unit, b)
        sizes = [u * recurrence.largest(magnitude(v[:, 0])) for u, v in parts]
        return *sizes, ENLARGED * roundings * jnp.maximum(*drawn)

    told = [of_leaf(a, b) for a, b in zip(*map(jax.tree.leaves, (found, second)), strict=True)]
    first, second, floor = (functools.reduce(jnp.maximum, v) for v in zip(*told, strict=True))
    holds = settled & again & (second <= CURVED * first + floor)
    error = jnp.where(holds, FACTOR * (first + 2 * second), jnp.inf)
    finite = jnp.isfinite(first) & jnp.isfinite(second)
    if kinks_of(recurrence):
        reach = [REACH * (FACTOR * (a + 2 * b) + c) for a, b, c in told]
        base = jax.tree.unflatten(jax.tree.structure(states), reach)
        respond = functools.partial(_response, size, solve)
        floor += departure(recurrence, states, residuals, base, respond).added
    # A floor that is not small is no linear model's any more: the recurrence is not determined.
    known = floor <= STRAIGHT * (1 + size(states))
    return Certificate(jnp.where(finite, error, jnp.nan), jnp.where(known, floor, jnp.inf))


def _response(size, solve, magnitudes: Carry) -> tuple[Carry, Array]:
    """What the recurrence makes of errors of these magnitudes, and whether it is solved."""
    unit = size(magnitudes)
    drawn = lambda *s: jnp.stack([_over(a, unit) for a in s], 1)  # noqa: E731
    found, settled = solve(jax.tree.map(drawn, *_signed(magnitudes)))
    most = lambda a: ENLARGED * unit * jnp.max(jnp.abs(a), axis=1)  # noqa: E731
    return jax.tree.map(most, found), settled


def _size(recurrence: Recurrence, tree: Carry) -> Array:
    """The largest magnitude, over all steps wherever they are."""
    return recurrence.largest(magnitude(tree))


def _solve(recurrence: Recurrence, step, entering: Carry, rhs: Carry) -> tuple[Carry, Array]:
    """d_t = J_t d_{t-1} + r_t for several r at once, and whether it is solved.

    Args:
      recurrence, step: the recurrence, and its step with its own derivative.
      entering: x_0..x_{n-1}.
      rhs: r_t, (n, right-hand sides, ...), of magnitude 1.
    """

    def linear(d, values):
        x, u, r = values
        push = lambda v: jax.jvp(lambda x: step(x, u), (x,), (v,))[1]  # noqa: E731
        return jax.tree.map(jnp.add, jax.vmap(push)(d), r)

    zero = jax.tree.map(lambda a: jnp.zeros_like(a[0]), rhs)
    inputs = (entering, recurrence.inputs, rhs)
    errors = dataclasses.replace(recurrence, step=linear, init=zero, inputs=inputs)
    made = SWEEP.evaluate(errors, SETTLED)
    return made.states, made.converged


def _over(r: Array, unit: Array) -> Array:
    """r in a unit; that of nothing but zeros is no number to divide by."""
    return r / jnp.where(unit == 0, 1, unit).astype(r.dtype)


def _signed(u: Carry) -> list[Carry]:
    """`DRAWS` trees of the same magnitudes with different signs."""
    leaves, tree = jax.tree.flatten(u)
    n, drawn = len(leaves), cotangents(DRAWS * leaves)
    made = [jnp.copysign(a, s) for a, s in zip(DRAWS * leaves, drawn, strict=True)]
    return [jax.tree.unflatten(tree, made[k : k + n]) for k in range(0, DRAWS * n, n)]
