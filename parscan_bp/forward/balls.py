"""Balls through a program: how far the results of a step bend away from their linear model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, JaxprEqn

from parscan_bp.forward import kink_rules as kinks
from parscan_bp.forward import smooth_rules as smooth
from parscan_bp.forward.ball import Ball, filled_ball, shaped
from parscan_bp.jaxprs.control_flow import run_inside
from parscan_bp.jaxprs.hijax import kind_of
from parscan_bp.jaxprs.primitive_kinds import (
    CALLS,
    CUSTOM_CALLS,
    ELEMENTWISE,
    LINEAR,
    MOVES,
    PREDICATES,
    PRODUCTS,
    SMOOTH,
    SUMS,
)
from parscan_bp.jaxprs.read import called, is_complex, is_inexact
from parscan_bp.jaxprs.replay import bind, interpret

BallRule = Callable[..., Sequence[Ball]]


def evaluate_balls(closed: ClosedJaxpr, values: Sequence[Any]) -> list[Ball]:
    """The results of a program.

    Args:
      closed: the program.
      values: its arguments, each a `Ball`, or an array, which is exact.

    Example:
      >>> import jax
      >>> program = jax.make_jaxpr(lambda x: 2 * jnp.maximum(x, 0.0))(1.0)
      >>> for x in (1.0, 0.25):
      ...     (y,) = evaluate_balls(program, [Ball(jnp.asarray(x), jnp.asarray(0.5))])
      ...     print(round(float(y.radius), 3), round(float(y.bent), 3))
      1.0 0.0
      1.0 0.5
    """
    found = interpret(closed, values, _apply)
    return [filled_ball(v, a) for v, a in zip(found, closed.out_avals, strict=True)]


def _apply(eqn: JaxprEqn, values: Sequence[Any]) -> Sequence[Any]:
    name = kind_of(eqn)
    if name in CALLS or name in CUSTOM_CALLS:
        return interpret(called(eqn), values, _apply)
    exact = name in MOVES or not any(map(is_inexact, eqn.outvars))
    if exact and not any(isinstance(v, Ball) for v in values):
        return bind(eqn, values)
    made = _rule(eqn)(eqn, *(v if isinstance(v, Ball) else Ball(v) for v in values))
    return [shaped(b, atom.aval) for b, atom in zip(made, eqn.outvars, strict=True)]


def is_opaque(eqn: JaxprEqn) -> bool:
    """Whether no rule here says how far the results of an equation move."""
    return _rule(eqn) is smooth.opaque


def _rule(eqn: JaxprEqn) -> BallRule:
    name, floats = kind_of(eqn), any(map(is_inexact, eqn.outvars))
    if any(map(is_complex, (*eqn.invars, *eqn.outvars))):
        return smooth.linear if name in MOVES else smooth.opaque
    if name in SMOOTH & ELEMENTWISE | PREDICATES and not any(map(is_inexact, eqn.invars)):
        return smooth.discrete
    if name in RULES:
        return RULES[name]
    if name in SMOOTH & ELEMENTWISE:
        return smooth.elementwise
    if name in PRODUCTS and floats:
        return smooth.bilinear
    return smooth.linear if name in LINEAR else smooth.opaque


def _cond(eqn, which, *operands):
    results = [evaluate_balls(branch, operands) for branch in eqn.params["branches"]]
    index = jnp.clip(which.value, 0, len(results) - 1)
    return [kinks.chosen(which._replace(value=index), list(r)) for r in zip(*results, strict=True)]


def _scan(eqn, *operands):
    whole = [filled_ball(b, atom.aval) for b, atom in zip(operands, eqn.invars, strict=True)]
    return run_inside(eqn, whole, evaluate_balls)


RULES: dict[str, BallRule] = {
    **dict.fromkeys((*SUMS, "neg"), smooth.sum_of),
    "mul": smooth.product_of,
    "div": smooth.quotient,
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), kinks.comparison),
    "is_finite": kinks.is_finite,
    "max": kinks.extreme,
    "min": kinks.extreme,
    "clamp": kinks.clamp,
    "abs": kinks.absolute,
    **dict.fromkeys(("sign", "floor", "ceil", "round"), kinks.jump),
    "convert_element_type": kinks.convert,
    "select_n": kinks.select,
    "reduce_max": kinks.reduce_extreme,
    "reduce_min": kinks.reduce_extreme,
    "argmax": kinks.arg_extreme,
    "argmin": kinks.arg_extreme,
    "sort": kinks.sort,
    "cond": _cond,
    "scan": _scan,
}
"""By primitive: ``(equation, balls) -> the balls of its results``."""
