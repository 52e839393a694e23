"""A value within a step, with how far it moves and how far it bends where the carry moves.

For all |e| up to a reach of the carry,

    |v(x + e) - v(x)| <= radius,    |v(x + e) - v(x) - v'(x) e| <= bent,

to first order where v is smooth: what curvature adds is measured elsewhere. At a kink or jump
within the radius of its operands ``bent`` is what the other side makes of them. Predicates and
whole numbers have the radius 0 where they are certain, else infinity. Rounding within the step is
part of a radius; whole numbers made of whole numbers are exact.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from parscan_bp.forward.rounding import ROUNDINGS, is_whole
from parscan_bp.types import Array


class Ball(NamedTuple):
    """A value with what may become of it; ``None`` stands for zeros.

    Attributes:
      value: v(x).
      radius, bent: see above, of its shape.
    """

    value: Any
    radius: Any = None
    bent: Any = None


def shaped(ball: Ball, aval: Any) -> Ball:
    """The same, its numbers of the shape and precision of the value."""
    inexact = jnp.issubdtype(aval.dtype, jnp.inexact)
    dtype = jnp.finfo(aval.dtype).dtype if inexact else jnp.float32

    def whole(a):
        return None if a is None else jnp.broadcast_to(jnp.asarray(a, dtype), aval.shape)

    return Ball(ball.value, whole(ball.radius), whole(ball.bent))


def filled_ball(v: Any, aval: Any) -> Ball:
    """The same with arrays throughout: a loop keeps its types."""
    value, radius, bent = v if isinstance(v, Ball) else Ball(v)
    if not jnp.issubdtype(aval.dtype, jax.dtypes.extended):
        value = jnp.broadcast_to(jnp.asarray(value, aval.dtype), aval.shape)
    numbers = (jnp.zeros(()) if a is None else a for a in (radius, bent))
    return shaped(Ball(value, *numbers), aval)


def added(*numbers: Array | None) -> Array | None:
    there = [a for a in numbers if a is not None]
    return functools.reduce(jnp.add, there) if there else None


def times(slope: Array | None, number: Array | None) -> Array | None:
    """Their product; where nothing moves, no slope is too steep."""
    if slope is None or number is None:
        return None
    return jnp.where(number == 0, 0, slope * number)


def is_some(number: Array) -> Array:
    """Whether it is not 0; NaN is not."""
    return ~(number == 0)


def uncertain(flags: Array) -> Array:
    """The radius of a predicate or whole number."""
    return jnp.where(flags, jnp.inf, 0.0)


def roundings(value: Array, size: Array, *operands: Array) -> Array:
    """What rounding adds to a sum or product: none to whole numbers of whole ones.

    Args:
      value: the result.
      size: the magnitude of what was rounded.
      *operands: of the result.
    """
    exact = is_whole(value)
    for a in operands:
        exact &= is_whole(a) if jnp.shape(a) == jnp.shape(value) else jnp.all(is_whole(a))
    return jnp.where(exact, 0, ROUNDINGS * jnp.finfo(jnp.result_type(value)).eps * size)
