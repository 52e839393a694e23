"""Whether an operation is arithmetic, which is as fast to do again as its result is to read."""

from __future__ import annotations

from jax.extend.core import JaxprEqn

from parscan_bp.structure.jaxprs import shape_of
from parscan_bp.structure.rules import ELEMENTWISE

_ARITHMETIC = frozenset(
    "abs add add_any and clamp convert_element_type copy div eq ge gt integer_pow le lt max min "
    "mul ne neg not one_minus_square or select_n sign square stop_gradient sub xor".split()
)
_MOVES = frozenset(
    "broadcast_in_dim concatenate expand_dims reshape rev slice split squeeze transpose".split()
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
    return eqn.primitive.name in _ARITHMETIC | _MOVES


def is_elementwise(eqn: JaxprEqn) -> bool:
    """Whether an equation is a function of each number by itself."""
    return eqn.primitive.name in ELEMENTWISE
