"""Whether operations are arithmetic, which is as fast to do again as the result is to read."""

from __future__ import annotations

from jax.extend.core import JaxprEqn

from parscan_bp.jaxprs.hijax import kind_of
from parscan_bp.jaxprs.primitive_kinds import ARITHMETIC, ELEMENTWISE, MOVES
from parscan_bp.jaxprs.read import (
    shape_of,
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
    if kind_of(eqn) == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        return all(shape_of(eqn.invars[0])[axis] == 1 for axis in contracted)
    return kind_of(eqn) in ARITHMETIC or is_move(eqn)


def is_move(eqn: JaxprEqn) -> bool:
    """Whether every number of an equation's result is one of an operand's."""
    return kind_of(eqn) in MOVES


def is_elementwise(eqn: JaxprEqn) -> bool:
    """Whether an equation is a function of each number by itself."""
    return kind_of(eqn) in ELEMENTWISE
