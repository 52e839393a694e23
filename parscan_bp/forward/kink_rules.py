"""Balls through primitives that have kinks or jumps: what the other side would make of them."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax

from parscan_bp.forward.ball import Ball, added, is_some, uncertain
from parscan_bp.forward.rounding import ROUNDINGS
from parscan_bp.forward.smooth_rules import discrete, opaque
from parscan_bp.jaxprs.read import is_inexact
from parscan_bp.jaxprs.replay import bind


def _radius(b: Ball) -> jax.Array:
    return jnp.zeros((), jnp.float32) if b.radius is None else b.radius


def _bent(b: Ball) -> jax.Array:
    return jnp.zeros((), jnp.float32) if b.bent is None else b.bent


def _meets(gap, moved):
    """Whether a gap may be closed; what does not move closes none."""
    return is_some(moved) & ~(gap > moved)


def comparison(eqn, a, b):
    if not is_inexact(eqn.invars[0]):
        return discrete(eqn, a, b)
    (value,) = bind(eqn, [a.value, b.value])
    moved = _radius(a) + _radius(b)
    if eqn.invars[0] is eqn.invars[1]:  # as a test for NaN
        return [Ball(value, uncertain(~(moved < jnp.inf)))]
    return [Ball(value, uncertain(_meets(jnp.abs(a.value - b.value), moved)))]


def is_finite(eqn, a):
    (value,) = bind(eqn, [a.value])
    moved = jnp.abs(a.value) + _radius(a)
    return [Ball(value, uncertain(is_some(_radius(a)) & ~(moved < jnp.inf)))]


def extreme(eqn, a, b):
    """max or min: the operand that is not taken may be, by as much as they may pass each other."""
    if not is_inexact(eqn.outvars[0]):
        return discrete(eqn, a, b)
    (value,) = bind(eqn, [a.value, b.value])
    gap, moved = jnp.abs(a.value - b.value), _radius(a) + _radius(b)
    meets, first = _meets(gap, moved), value == a.value

    def of(p, q):
        return jnp.where(meets, jnp.maximum(p, q), jnp.where(first, p, q))

    passed = jnp.where(meets, moved - gap, 0)
    return [Ball(value, of(_radius(a), _radius(b)), of(_bent(a), _bent(b)) + passed)]


def clamp(eqn, low, a, high):
    if not is_inexact(eqn.outvars[0]):
        return discrete(eqn, *(_spread(b, a.value) for b in (low, a, high)))
    (value,) = bind(eqn, [low.value, a.value, high.value])
    radius, bent = _radius(a), _bent(a)
    inside = value == a.value
    for end in (low, high):
        gap, moved = jnp.abs(a.value - end.value), _radius(a) + _radius(end)
        meets = _meets(gap, moved)
        at_end = ~inside & (value == end.value)
        radius = jnp.where(meets, jnp.maximum(radius, _radius(end)), radius)
        radius = jnp.where(at_end & ~meets, _radius(end), radius)
        bent = jnp.where(at_end & ~meets, _bent(end), bent)
        bent = bent + jnp.where(meets, _bent(end) + moved - gap, 0)
    return [Ball(value, radius, bent)]


def _spread(b: Ball, like) -> Ball:
    return Ball(b.value, None if b.radius is None else jnp.broadcast_to(b.radius, jnp.shape(like)))


def absolute(eqn, a):
    if not is_inexact(eqn.outvars[0]):
        return discrete(eqn, a)
    (value,) = bind(eqn, [a.value])
    radius = _radius(a)
    passed = jnp.where(_meets(value, radius), 2 * (radius - value), 0)
    return [Ball(value, radius, _bent(a) + passed)]


def jump(eqn, a):
    """A function that rises in steps: what is between its ends is one of them."""
    if not is_inexact(eqn.invars[0]):
        return discrete(eqn, a)
    (value,) = bind(eqn, [a.value])
    radius = _radius(a)
    ends = [bind(eqn, [end])[0] for end in (a.value - radius, a.value + radius)]
    if not is_inexact(eqn.outvars[0]):
        differ = (ends[0] != ends[1]) | ~(radius < jnp.inf)
        return [Ball(value, uncertain(is_some(radius) & differ))]
    far = functools.reduce(jnp.maximum, [jnp.abs(end - value) for end in ends])
    far = jnp.where(radius == 0, 0, far)
    return [Ball(value, far, far)]


def convert(eqn, a):
    (value,) = bind(eqn, [a.value])
    old, new = eqn.invars[0].aval.dtype, eqn.params["new_dtype"]
    if not jnp.issubdtype(new, jnp.inexact):
        return jump(eqn, a)
    if not jnp.issubdtype(old, jnp.inexact):
        far = None if a.radius is None else uncertain(is_some(a.radius)).astype(new)
        return [Ball(value, far, far)]
    narrower = jnp.finfo(new).eps > jnp.finfo(old).eps
    rounding = ROUNDINGS * jnp.finfo(new).eps * jnp.abs(value) if narrower else None
    radius, bent = (None if r is None else r.astype(new) for r in (a.radius, a.bent))
    return [Ball(value, added(radius, rounding), bent)]


def chosen(which: Ball, cases: list[Ball]) -> Ball:
    """One of several, by an index or predicate; where it is not certain, any of them.

    What is linear around the one that is chosen is off by what they differ, and both move.
    """
    shape = jnp.shape(cases[0].value)
    index = which.value

    def pick(parts):
        parts = [jnp.broadcast_to(p, shape) for p in parts]
        dtype = jnp.result_type(*parts)
        return lax.select_n(index, *(p.astype(dtype) for p in parts))

    values = [c.value for c in cases]
    value = lax.select_n(index, *values)
    inexact = jnp.issubdtype(value.dtype, jnp.inexact)
    radius, bent = pick(list(map(_radius, cases))), pick(list(map(_bent, cases)))
    if which.radius is not None:

        def apart(c):
            if inexact:
                # Infinities of one sign are no distance apart.
                return jnp.where(c.value == value, 0, jnp.abs(c.value - value)) + _radius(c)
            return uncertain((c.value != value) | is_some(_radius(c)))

        open_ = is_some(which.radius)
        spread = functools.reduce(jnp.maximum, map(apart, cases))
        bent = jnp.where(open_, spread + radius, bent)
        radius = jnp.where(open_, spread, radius)
    return Ball(value, radius, bent if inexact else None)


def select(eqn, which, *cases):
    return [chosen(which, list(cases))]


def reduce_extreme(eqn, a):
    """The largest or smallest along axes: others may pass it that are near."""
    if not is_inexact(eqn.outvars[0]):
        return opaque(eqn, a)
    (value,) = bind(eqn, [a.value])
    radius, bent, open_ = _contest(eqn, a, eqn.primitive.name == "reduce_max")
    return [Ball(value, radius, bent + jnp.where(open_, 2 * radius, 0))]


def arg_extreme(eqn, a):
    if not is_inexact(eqn.invars[0]):
        return opaque(eqn, a)
    (value,) = bind(eqn, [a.value])
    return [Ball(value, uncertain(_contest(eqn, a, eqn.primitive.name == "argmax")[2]))]


def _contest(eqn, a, is_max):
    """Of those that may be the extreme one, radius and bent, and whether there are several."""
    axes = eqn.params["axes"]
    v = a.value if is_max else -a.value
    radius, bent = (jnp.broadcast_to(r, jnp.shape(v)) for r in (_radius(a), _bent(a)))
    least = jnp.max(v - radius, axis=axes, keepdims=True)
    near = ~(v + radius < least)

    def most(r):
        return jnp.max(jnp.where(near, r, 0), axis=axes)

    return most(radius), most(bent), (jnp.sum(near, axis=axes) > 1) & is_some(most(radius))


def sort(eqn, *balls):
    """Numbers in order move no further than they do; what goes with them may go elsewhere."""
    if eqn.params["num_keys"] != 1 or not is_inexact(eqn.invars[0]):
        return opaque(eqn, *balls)
    values = bind(eqn, [b.value for b in balls])
    axis = eqn.params["dimension"]

    def most(r):
        return jnp.max(jnp.broadcast_to(r, jnp.shape(values[0])), axis=axis, keepdims=True)

    moved = most(_radius(balls[0]))
    gaps = jnp.diff(values[0], axis=axis)
    open_ = jnp.any(_meets(gaps, 2 * moved), axis=axis, keepdims=True)
    found = []
    for k, (value, b) in enumerate(zip(values, balls, strict=True)):
        radius, bent = most(_radius(b)), most(_bent(b))
        if k == 0:
            bent = bent + jnp.where(open_, 2 * moved, 0)
        else:
            radius, bent = (r + uncertain(open_) for r in (radius, bent))
        shape = jnp.shape(value)
        found.append(Ball(value, jnp.broadcast_to(radius, shape), jnp.broadcast_to(bent, shape)))
    return found
