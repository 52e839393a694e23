"""Whether a function is arithmetic alone, which is as fast to do again as its result is to read."""

from __future__ import annotations

from jax.extend.core import Jaxpr

from parscan_bp.structure.jaxprs import CALLS, walk

_ARITHMETIC = frozenset(
    "abs add add_any and clamp convert_element_type copy div eq ge gt integer_pow le lt max min "
    "mul ne neg not one_minus_square or select_n sign square stop_gradient sub xor".split()
)
_MOVES = frozenset(
    "broadcast_in_dim concatenate expand_dims reshape rev slice split squeeze transpose".split()
)


def is_arithmetic(jaxpr: Jaxpr) -> bool:
    """Whether every equation adds, multiplies, compares or moves numbers.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> slopes = [lambda y: 1 - y * y, lambda a: jnp.cos(a), lambda w: w @ w]
      >>> [is_arithmetic(jax.make_jaxpr(f)(jnp.ones((2, 2))).jaxpr) for f in slopes]
      [True, False, False]
    """
    names = {eqn.primitive.name for eqn in walk(jaxpr)}
    return names <= _ARITHMETIC | _MOVES | CALLS
