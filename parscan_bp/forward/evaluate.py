"""A forward pass by a method: the trajectory, its certificate, or the sequential pass after all."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from parscan_bp.arguments import described
from parscan_bp.devices import DeviceOrder
from parscan_bp.forward.base import (
    Carry,
    Forward,
    Recurrence,
    Trajectory,
    over_steps,
    with_guess,
)
from parscan_bp.forward.bound import bound
from parscan_bp.forward.certificate import Certificate, are_all, magnitude
from parscan_bp.forward.certified import Certified
from parscan_bp.forward.estimate import estimate
from parscan_bp.forward.fall_back import fall_back
from parscan_bp.forward.report import ForwardReport, forward_report
from parscan_bp.types import PyTree

BELOW = 256
"""How much lower than the tolerance a method is asked to stop: errors are residuals times what the
recurrence makes of them, and the linear model of a certificate wants them small."""

CERTIFY = {"estimate": estimate, "bound": bound}
"""By name: ``(recurrence, states, residuals, radius) -> Certificate``, the radius being the error
that is allowed."""


class LoopFunctions(NamedTuple):
    """A loop in the form of `jax.lax.scan`, as functions of its constants.

    Attributes:
      step: ``(consts, carry, x) -> (carry, y)``.
      sequential: ``(consts, init, xs) -> (states, ys)``, one step after the other.
    """

    step: Callable[[PyTree, Carry, PyTree], tuple[Carry, PyTree]]
    sequential: Callable[[PyTree, Carry, PyTree], tuple[Carry, PyTree]]


def certified_run(
    how: Forward,
    steps: LoopFunctions,
    consts: PyTree,
    init: Carry,
    xs: PyTree,
    length: int,
    guess: Carry,
    line: DeviceOrder | None = None,
) -> tuple[Carry, PyTree, ForwardReport]:
    """The states and outputs of a loop, within the tolerance or as the sequential pass has them.

    Args:
      how: the method, and what is asked of it.
      steps: the loop.
      consts, init, xs: its arguments.
      length: the number of steps.
      guess: states to begin with; ``None`` where there are none.
      line: see `Recurrence`; the other arguments are then of the steps that are here.

    Returns:
      The carry after every step, the outputs, and the `ForwardReport`.
    """

    def update(carry, x):
        return steps.step(consts, carry, x)[0]

    method = how if guess is None else with_guess(how, guess)
    recurrence = Recurrence(update, init, xs, length, line)
    tolerance = tolerance_of(how, jax.tree.leaves(init))
    stop = stop_of(tolerance, jax.tree.leaves(init))
    states, rounds, converged = _made(method, recurrence, stop)
    # One evaluation of all steps has the outputs, and the residuals.
    entering = recurrence.entering(states)
    images, ys = over_steps(lambda c, x: steps.step(consts, c, x), length, entering, xs)
    residuals = jax.tree.map(jnp.subtract, states, images)
    scale = 1 + recurrence.largest(magnitude(states))
    found = _certificate(how, recurrence, (states, residuals), converged, tolerance * scale)
    error = found.error / scale
    floor = found.floor / scale
    certified = converged & (error + floor <= tolerance)
    falls = ~certified if how.fallback else jnp.zeros_like(certified)
    if how.fallback:
        made = fall_back(falls, (states, ys), steps.sequential, consts, init, xs)
        states, ys = made
    told = forward_report(
        certified=certified,
        finite=~recurrence.on_any(~are_all(jax.tree.map(jnp.isfinite, states))),
        residual=recurrence.largest(magnitude(residuals)) / scale,
        error=error,
        floor=floor,
        tolerance=tolerance,
        iterations=rounds,
        converged=converged,
        fell_back=falls,
        states=states,
    )
    return states, ys, told


def _made(method: Forward, recurrence: Recurrence, stop: float) -> Trajectory:
    """What a method makes.

    Raises:
      TypeError: if that is no trajectory of the recurrence, naming the method.
    """
    made = method.evaluate(recurrence, stop)
    name, n = f"{type(method).__name__}.evaluate", recurrence.length
    if not (isinstance(made, tuple) and len(made) == 3):
        wanted = "a Trajectory(states, iterations, converged) is wanted"
        raise TypeError(f"{name} returned {described(made)}; {wanted}")
    got = jax.tree.map(lambda a: (jnp.shape(a), str(jnp.result_type(a))), made[0])
    want = jax.tree.map(lambda a: ((n, *a.shape), str(a.dtype)), recurrence.init)
    flags = [jnp.shape(flag) for flag in made[1:]]
    if got != want:
        raise TypeError(f"{name} returned states of {got}; {want} are wanted")
    if flags != [(), ()]:
        raise TypeError(f"{name} returned counts and flags of shapes {flags}; scalars are wanted")
    return Trajectory(*made)


def _certificate(
    how: Forward, recurrence: Recurrence, made: tuple[Carry, Carry], converged, radius
) -> Certificate:
    """The certificate of states and residuals that converged; of others it would be work for
    nothing: they are taken for x_0 throughout, and refused."""
    at_rest = jax.tree.map(
        lambda first, a: jnp.broadcast_to(first, a.shape), recurrence.init, made[0]
    )
    keep = lambda a, b: jnp.where(converged, a, b)  # noqa: E731
    states = jax.tree.map(keep, made[0], at_rest)
    residuals = jax.tree.map(lambda r: keep(r, jnp.zeros_like(r)), made[1])
    found = CERTIFY[how.certify](recurrence, states, residuals, radius)
    return Certificate(*(keep(v, jnp.full_like(v, jnp.inf)) for v in found))


def tolerance_of(how: Certified, carry: Sequence[Any]) -> float:
    """The tolerance of a carry: what was asked for, or what its shortest dtype has."""
    if how.tolerance is not None:
        return float(how.tolerance)
    return max(math.sqrt(jnp.finfo(jnp.result_type(leaf)).eps) for leaf in carry)


def stop_of(tolerance: float, carry: Sequence[Any]) -> float:
    """The tolerance of the method, for that of the result."""
    eps = max(float(jnp.finfo(jnp.result_type(a)).eps) for a in carry)
    return max(4 * eps, tolerance / BELOW)
