"""Balls through primitives that are smooth."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.extend.core import JaxprEqn

from parscan_bp.forward.ball import (
    Ball,
    added,
    is_some,
    roundings,
    times,
    uncertain,
)
from parscan_bp.forward.rounding import ROUNDINGS
from parscan_bp.jaxprs.primitive_kinds import HOLOMORPHIC, LINEAR, MOVES, SMOOTH
from parscan_bp.jaxprs.read import is_complex, is_inexact
from parscan_bp.jaxprs.replay import bind
from parscan_bp.types import Array


def elementwise(eqn, *balls):
    """A smooth function of numbers at the same place."""
    values = [b.value for b in balls]
    (value,) = bind(eqn, values)
    radius: Array | None = ROUNDINGS * jnp.finfo(value.dtype).eps * jnp.abs(value)
    bent: Array | None = None
    moving = [k for k, b in enumerate(balls) if b.radius is not None]
    for k in moving:
        b = balls[k]
        if not is_inexact(eqn.invars[k]):
            far = uncertain(is_some(b.radius)).astype(value.dtype)
            radius, bent = added(radius, far), added(bent, far)
            continue

        def f(a, k=k):
            return bind(eqn, [*values[:k], a, *values[k + 1 :]])[0]

        own, own_bent = _along(f, value, b)
        if len(moving) > 1 and own_bent is not None:  # what bends is no small change
            own_bent = uncertain(is_some(own_bent))
        radius, bent = added(radius, own), added(bent, own_bent)
    return [Ball(value, radius, bent)]


def _along(f, value, b: Ball):
    """Radius and bent of f(b): by its slope, and its ends, where it comes farthest if it rises."""
    slope = jnp.abs(jax.jvp(f, (b.value,), (jnp.ones_like(b.value),))[1])
    ends = [jnp.abs(f(end) - value) for end in (b.value + b.radius, b.value - b.radius)]
    own = jnp.where(b.radius == 0, 0, functools.reduce(jnp.maximum, [slope * b.radius, *ends]))
    steepest = jnp.maximum(slope, own / jnp.where(b.radius == 0, 1, b.radius))
    return own, times(steepest, b.bent)


def quotient(eqn, a, b):
    """a times 1 / b."""
    if b.radius is None:
        return elementwise(eqn, a, b)
    inverse = 1 / b.value
    other = Ball(inverse, *_along(lambda b: 1 / b, inverse, b))
    return _product(bind(eqn, [a.value, b.value])[0], a, other)


def sum_of(eqn, *balls):
    """A sum or difference, or what is negative."""
    values = [b.value for b in balls]
    (value,) = bind(eqn, values)
    rounding = roundings(value, jnp.abs(value), *values)
    radius = added(*(b.radius for b in balls), rounding)
    return [Ball(value, radius, added(*(b.bent for b in balls)))]


def product_of(eqn, a, b):
    """Of two numbers; where one of them bends, the other has moved already."""
    return _product(bind(eqn, [a.value, b.value])[0], a, b)


def _product(value, a: Ball, b: Ball):
    p, q = jnp.abs(a.value), jnp.abs(b.value)
    both = None if a.radius is None else times(a.radius, b.radius)
    rounding = roundings(value, jnp.abs(value), a.value, b.value)
    radius = added(times(q, a.radius), times(p, b.radius), both, rounding)
    bent = added(times(added(q, b.radius), a.bent), times(added(p, a.radius), b.bent))
    return [Ball(value, radius, bent)]


def bilinear(eqn, a, b):
    """A sum of products, of which |sum a b| <= sum |a| |b|."""

    def product(x, y):
        return None if x is None or y is None else bind(eqn, [x, y])[0]

    value, p, q = product(a.value, b.value), jnp.abs(a.value), jnp.abs(b.value)
    rounding = roundings(value, product(p, q), a.value, b.value)
    moved = [product(p, b.radius), product(a.radius, q), product(a.radius, b.radius)]
    bent = added(product(added(p, a.radius), b.bent), product(a.bent, added(q, b.radius)))
    return [Ball(value, added(*moved, rounding), bent)]


_INDICES = {
    "dynamic_slice": slice(1, None),
    "dynamic_update_slice": slice(2, None),
    "gather": slice(1, 2),
    "scatter": slice(1, 2),
    "scatter-add": slice(1, 2),
}


def linear(eqn, *balls):
    """What moves numbers or adds them does so with their radii; an index has to be certain."""
    values = [b.value for b in balls]
    indices = set(range(len(balls))[_INDICES.get(eqn.primitive.name, slice(0, 0))])

    def of(parts):
        """The same sums of other numbers."""
        parts = [None if k in indices else part for k, part in enumerate(parts)]
        there = [part for part in parts if part is not None]
        if not there:
            return [None] * len(eqn.outvars)
        whole = [
            value if k in indices else jnp.zeros(jnp.shape(value), there[0].dtype)
            for k, value in enumerate(values)
        ]
        return bind(eqn, [w if p is None else p for p, w in zip(parts, whole, strict=True)])

    made = bind(eqn, values)
    radii, bents = of([b.radius for b in balls]), of([b.bent for b in balls])
    if eqn.primitive.name not in MOVES and is_inexact(eqn.outvars[0]):
        sizes = of(list(map(jnp.abs, values)))
        made_of = zip(made, radii, sizes, strict=True)
        radii = [added(r, roundings(v, size, *values)) for v, r, size in made_of]
    lost = [jnp.any(is_some(balls[k].radius)) for k in indices if balls[k].radius is not None]
    for flag in lost:
        far = uncertain(flag).astype(jnp.float32)
        radii, bents = ([added(a, far) for a in numbers] for numbers in (radii, bents))
    return list(map(Ball, made, radii, bents))


def discrete(eqn, *balls):
    """Numbers that are no floats, each made of those at its place."""
    made = bind(eqn, [b.value for b in balls])
    radius = added(*(b.radius for b in balls))
    return [Ball(v, None if radius is None else uncertain(is_some(radius))) for v in made]


def opaque(eqn, *balls):
    """Of what nothing is known but that its results are those of its operands, or is smooth."""
    made = bind(eqn, [b.value for b in balls])

    def far(numbers):
        there = [jnp.any(is_some(a)) for a in numbers if a is not None]
        return uncertain(functools.reduce(jnp.logical_or, there, jnp.zeros((), bool)))

    radius = far([b.radius for b in balls])
    bent = far([b.bent for b in balls]) if is_smooth(eqn) else radius

    def ball(v, atom):
        if not is_inexact(atom):
            return Ball(v, radius)
        own = LOOSE * ROUNDINGS * jnp.finfo(jnp.result_type(v)).eps * jnp.abs(v)
        return Ball(v, own + radius, bent)

    return list(map(ball, made, eqn.outvars))


LOOSE = 16
"""By which more an operation rounds of which nothing is known."""


def is_smooth(eqn: JaxprEqn) -> bool:
    """Whether an equation of floats is known to have no kinks of its own."""
    name = eqn.primitive.name
    if any(map(is_complex, eqn.invars)) and name not in HOLOMORPHIC | LINEAR - {"log"}:
        return name in ("real", "imag", "conj")
    if name == "select_n":  # its predicate is what jumps
        return True
    return name in SMOOTH or (name == "convert_element_type" and is_inexact(eqn.outvars[0]))
