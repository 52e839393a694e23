"""Whether operations are arithmetic, which is as fast to do again as the result is to read."""

from __future__ import annotations

from typing import Any

from jax.extend.core import JaxprEqn, Var

from parscan_bp.jaxprs.primitive_kinds import ARITHMETIC, CALLS, ELEMENTWISE, MOVES
from parscan_bp.jaxprs.read import (
    called_jaxpr,
    is_inexact,
    needed_equations,
    open_jaxpr,
    shape_of,
    walk,
)


def is_arithmetic(eqn: JaxprEqn) -> bool:
    """Whether an equation adds, multiplies, compares or moves numbers.

    A product that contracts an axis of one number multiplies.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> def f(a):
      ...     return 1 - a * a, jnp.cos(a), a @ a, a[:, :1] @ a[:1]
      >>> [is_arithmetic(e) for e in jax.make_jaxpr(f)(jnp.ones((2, 2))).eqns]
      [True, True, False, False, True, True, True]
    """
    if eqn.primitive.name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        return all(shape_of(eqn.invars[0])[axis] == 1 for axis in contracted)
    return eqn.primitive.name in ARITHMETIC or is_move(eqn)


def is_move(eqn: JaxprEqn) -> bool:
    """Whether every number of an equation's result is one of an operand's."""
    return eqn.primitive.name in MOVES


def is_elementwise(eqn: JaxprEqn) -> bool:
    """Whether an equation is a function of each number by itself."""
    return eqn.primitive.name in ELEMENTWISE


def carries_arithmetic_alone(jaxpr: Any, num_consts: int, num_carry: int) -> bool:
    """Whether new float carries depend on the old through operations that are all arithmetic.

    Args:
      jaxpr: the scan body, inputs ``[*consts, *carry, *x]``.
      num_consts: number of loop-invariant inputs.
      num_carry: number of carry leaves.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> steps = [lambda c, x: c * c + jnp.sin(x), lambda c, x: c + jnp.sin(c) * x]
      >>> [carries_arithmetic_alone(jax.make_jaxpr(f)(1.0, 1.0), 0, 1) for f in steps]
      [True, False]
    """
    opened = open_jaxpr(jaxpr)
    names = opened.debug_info._replace(result_paths=None)
    carried = opened.replace(outvars=opened.outvars[:num_carry], debug_info=names)
    moving: set[Any] = set(filter(is_inexact, opened.invars[num_consts : num_consts + num_carry]))
    for eqn in needed_equations(carried):
        if moving.intersection(v for v in eqn.invars if isinstance(v, Var)):
            moving.update(eqn.outvars)
            if not all(map(is_arithmetic, _operations(eqn))):
                return False
    return True


def _operations(eqn: JaxprEqn) -> list[JaxprEqn]:
    """The equation, or those of the jaxpr that it calls."""
    if eqn.primitive.name not in CALLS:
        return [eqn]
    return [e for e in walk(called_jaxpr(eqn)) if e.primitive.name not in CALLS]
