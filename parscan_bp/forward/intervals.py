"""Interval arithmetic on a jaxpr: enclosures of its results for all arguments in intervals.

Every operation rounds outward, by more than the operation itself errs. What depends on no interval
is evaluated as it stands; a primitive on intervals that has no rule here is refused by name. So are
those with kinks, such as ``max``: of them a second derivative that is zero on either side says
nothing.

Source: Moore, Kearfott and Cloud, Introduction to Interval Analysis (2009); products of matrices by
midpoint and radius, Rump, BIT 39 (1999).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, JaxprEqn

from parscan_bp.jaxprs.hijax import kind_of
from parscan_bp.jaxprs.primitive_kinds import CALLS, CUSTOM_CALLS, MOVES
from parscan_bp.jaxprs.read import called
from parscan_bp.jaxprs.replay import bind, interpret
from parscan_bp.types import Array

ULPS = 8
"""Roundings by which results are widened: elementary functions of XLA err by a few."""


class Interval(NamedTuple):
    """All numbers from ``low`` to ``high``, entry by entry."""

    low: Array
    high: Array


def around(middle: Array, radius: Array) -> Interval:
    """The numbers within ``radius`` of ``middle``."""
    return widened(middle - radius, middle + radius)


def widened(low: Array, high: Array, terms: int = 1, size: Array | None = None) -> Interval:
    """Rounded outward.

    Args:
      low, high: the interval.
      terms: how many roundings went into each number, in units of `ULPS`.
      size: the magnitude of what was rounded; that of the results if it is ``None``.
    """
    info = jnp.finfo(low.dtype)
    eps, tiny = ULPS * terms * float(info.eps), ULPS * terms * float(info.tiny)
    below, above = (jnp.abs(low), jnp.abs(high)) if size is None else (size, size)
    return Interval(low - eps * below - tiny, high + eps * above + tiny)


def evaluate_interval(closed: ClosedJaxpr, values: Sequence[Any]) -> list[Any]:
    """The results of a program, each an array or an `Interval`.

    Args:
      closed: the program.
      values: its arguments, arrays or `Interval`s.

    Raises:
      NotImplementedError: naming the primitive that has no rule.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> program = jax.make_jaxpr(lambda x: jnp.tanh(x) * x)(1.0)
      >>> (found,) = evaluate_interval(program, [Interval(jnp.array(-1.0), jnp.array(2.0))])
      >>> [round(float(a), 3) for a in found]
      [-1.523, 1.928]
    """
    return interpret(closed, values, _apply)


def _apply(eqn: JaxprEqn, values: list[Any]) -> Sequence[Any]:
    if not any(isinstance(v, Interval) for v in values):
        return bind(eqn, values)
    name = kind_of(eqn)
    if name in CALLS or name in CUSTOM_CALLS:
        return evaluate_interval(called(eqn), values)
    if name in MOVES or name == "copy":
        lows, highs = (bind(eqn, [_ends(v)[end] for v in values]) for end in (0, 1))
        return list(map(Interval, lows, highs))
    if name not in RULES:
        raise NotImplementedError(
            f"certify: 'bound' knows no enclosure of the second derivative of a step with {name}; "
            "certify='estimate' takes any step"
        )
    return [RULES[name](eqn, *values)]


def _ends(value: Any) -> Interval:
    return value if isinstance(value, Interval) else Interval(value, value)


def _magnitude(value: Any) -> Array:
    low, high = _ends(value)
    return jnp.maximum(jnp.abs(low), jnp.abs(high))


def _add(eqn, a, b):
    (a, b), (c, d) = _ends(a), _ends(b)
    return widened(a + c, b + d)


def _sub(eqn, a, b):
    return _add(eqn, a, _neg(eqn, b))


def _neg(eqn, a):
    low, high = _ends(a)
    return Interval(-high, -low)


def _mul(eqn, a, b):
    (a, b), (c, d) = _ends(a), _ends(b)
    products = (a * c, a * d, b * c, b * d)
    return widened(functools.reduce(jnp.minimum, products), functools.reduce(jnp.maximum, products))


def _div(eqn, a, b):
    return _mul(eqn, a, _inverse(b)) if isinstance(b, Interval) else _mul(eqn, a, 1 / b)


def _inverse(b: Interval) -> Interval:
    """1 / b; all numbers where b contains 0."""
    crosses = (b.low <= 0) & (b.high >= 0)
    low, high = widened(1 / b.high, 1 / b.low)
    return Interval(jnp.where(crosses, -jnp.inf, low), jnp.where(crosses, jnp.inf, high))


def _power(eqn, a, exponent: int | None = None):
    """a to a whole power: even ones are not monotone over 0."""
    y = eqn.params["y"] if exponent is None else exponent
    if y < 0:
        return _inverse(_power(eqn, a, -y))
    low, high = (end**y for end in a)
    if y % 2 == 0:
        inside = (a.low <= 0) & (a.high >= 0)
        low, high = jnp.where(inside, 0, jnp.minimum(low, high)), jnp.maximum(low, high)
    return widened(low, high, max(1, y))


def _one_minus_square(eqn, a):
    low, high = _power(eqn, a, 2)
    return widened(1 - high, 1 - low)


def _rising(f: Callable[[Array], Array]) -> Callable[..., Interval]:
    """The rule of a function that rises."""
    return lambda eqn, a: widened(f(a.low), f(a.high))


def _within_one(f: Callable[[Array], Array]) -> Callable[..., Interval]:
    """The rule of a function with values and slopes of at most 1."""

    def rule(eqn, a):
        middle, radius = (a.low + a.high) / 2, (a.high - a.low) / 2
        low, high = widened(f(middle) - radius, f(middle) + radius, size=1 + jnp.abs(middle))
        return Interval(jnp.maximum(low, -1), jnp.minimum(high, 1))

    return rule


def _dot(eqn, a, b):
    """By midpoint and radius: |ab - m_a m_b| <= |m_a| r_b + r_a (|m_b| + r_b)."""
    product = lambda x, y: bind(eqn, [x, y])[0]  # noqa: E731
    (ma, ra), (mb, rb) = _middle(a), _middle(b)
    middle = product(ma, mb)
    radius = product(jnp.abs(ma), rb) + product(ra, jnp.abs(mb) + rb)
    (contracted, _), _ = eqn.params["dimension_numbers"]
    terms = math.prod(jnp.shape(ma)[axis] for axis in contracted)
    size = product(jnp.abs(ma) + ra, jnp.abs(mb) + rb)
    return widened(middle - radius, middle + radius, terms + 2, size)


def _middle(value: Any) -> tuple[Array, Array]:
    """Midpoint, and a radius that covers the interval around it."""
    if not isinstance(value, Interval):
        return value, jnp.zeros_like(value)
    middle = value.low + (value.high - value.low) / 2
    return middle, jnp.maximum(value.high - middle, middle - value.low)


def _sum(eqn, a):
    low, high = (bind(eqn, [end])[0] for end in a)
    terms = math.prod(jnp.shape(a.low)[axis] for axis in eqn.params["axes"])
    return widened(low, high, max(1, terms), bind(eqn, [_magnitude(a)])[0])


def _convert(eqn, a):
    if not jnp.issubdtype(eqn.params["new_dtype"], jnp.floating):
        raise NotImplementedError(
            "certify: 'bound' takes no step that makes its carry an integer "
            "(convert_element_type); certify='estimate' takes any step"
        )
    old, new = a.low.dtype, eqn.params["new_dtype"]
    if jnp.finfo(new).eps > jnp.finfo(old).eps:
        raise NotImplementedError(
            f"certify: 'bound' takes no step that rounds {old} to {new}, which jumps "
            "(convert_element_type); certify='estimate' takes any step"
        )
    return widened(bind(eqn, [a.low])[0], bind(eqn, [a.high])[0])


def _select(eqn, which, *cases):
    """Chosen by what is no interval; a choice by an interval jumps."""
    if isinstance(which, Interval):
        raise NotImplementedError(
            "certify: 'bound' takes no step that chooses by its carry (select_n); "
            "certify='estimate' takes any step"
        )
    lows, highs = zip(*map(_ends, cases), strict=True)
    return Interval(bind(eqn, [which, *lows])[0], bind(eqn, [which, *highs])[0])


RULES: dict[str, Callable[..., Interval]] = {
    "add": _add,
    "add_any": _add,
    "sub": _sub,
    "neg": _neg,
    "mul": _mul,
    "div": _div,
    "integer_pow": _power,
    "square": lambda eqn, a: _power(eqn, a, 2),
    "one_minus_square": _one_minus_square,
    "tanh": _rising(jnp.tanh),
    "logistic": _rising(jax.nn.sigmoid),
    "erf": _rising(lax.erf),
    "exp": _rising(jnp.exp),
    "expm1": _rising(jnp.expm1),
    "log": _rising(jnp.log),
    "log1p": _rising(jnp.log1p),
    "sqrt": _rising(jnp.sqrt),
    "sin": _within_one(jnp.sin),
    "cos": _within_one(jnp.cos),
    "dot_general": _dot,
    "reduce_sum": _sum,
    "select_n": _select,
    "convert_element_type": _convert,
}
"""By primitive: ``(equation, operands) -> the interval of its result``."""
