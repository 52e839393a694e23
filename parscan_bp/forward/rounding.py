"""What rounding does to a step: its operations are done again, each rounded otherwise.

Batched and sequential evaluations of a step add the same numbers in another order, and where large
ones cancel, what is left of each is another number. How large they were the result does not tell.
So the step is evaluated once more with a rounding added to, or taken from, what each operation
makes: as in stochastic arithmetic, what its value moves by is the size of what rounding does to it.

Source: Vignes, "A stochastic arithmetic for reliable scientific computation", Mathematics and
Computers in Simulation 35 (1993); Parker, "Monte Carlo arithmetic", UCLA CSD-970002 (1997).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import JaxprEqn

from parscan_bp.forward.base import Carry, Recurrence
from parscan_bp.forward.certificate import interpreted
from parscan_bp.jaxprs.hijax import kind_of
from parscan_bp.jaxprs.primitive_kinds import CALLS, CUSTOM_CALLS, ELEMENTWISE, MOVES
from parscan_bp.jaxprs.read import called
from parscan_bp.jaxprs.replay import bind, interpret
from parscan_bp.types import Array

ROUNDINGS = 4
"""Roundings of 1 + |x| that a step may make: sequential and batched forms of recurrent cells differ
by up to 2.9 in float32, those with 128 units by 4.6. As many are drawn of what is summed."""

WHOLE = 1 / 16
"""Whole numbers of fewer roundings are taken to be exact: flags, counts and what is made of them,
which a step may compare. The largest are 2^19 in float32 and 8 in bfloat16."""


def roundings_of(recurrence: Recurrence, states: Carry, residuals: Carry) -> Carry:
    """u_t: what rounding adds to each number of a step, at least 4 of 1 + |x|.

    It is what the value of a step moves by where its carry is rounded otherwise, and what each
    of its operations makes; of a loop or branch within, what enters it.

    Args:
      recurrence: the recurrence.
      states: x_1..x_n.
      residuals: r_1..r_n.
    """
    otherwise = dataclasses.replace(recurrence, step=interpreted(recurrence, _apply))
    after = otherwise.images(jax.tree.map(lambda a: _rounded(a, 1), states))

    def leaf(x, r, after):
        least = ROUNDINGS * jnp.finfo(x.dtype).eps * (1 + jnp.abs(x))
        return jnp.maximum(least, jnp.abs(x - r - after))

    return jax.tree.map(leaf, states, residuals, after)


def _apply(eqn: JaxprEqn, values: Sequence[Array]) -> Sequence[Array]:
    """An equation with its result rounded otherwise, or, where it sums, what it sums."""
    name = kind_of(eqn)
    if name in CALLS or name in CUSTOM_CALLS:
        return interpret(called(eqn), values, _apply)
    if name in MOVES:
        return bind(eqn, values)
    if name in ELEMENTWISE:
        return [_rounded(a, 1) for a in bind(eqn, values)]
    return bind(eqn, [_rounded(a, ROUNDINGS) for a in values])


def _rounded(a: Array, times: int) -> Array:
    """A number with so many roundings added or taken, which its last bits decide."""
    if not jnp.issubdtype(jnp.result_type(a), jnp.inexact):
        return a
    if jnp.iscomplexobj(a):
        return lax.complex(_rounded(a.real, times), _rounded(a.imag, times))
    a, info = jnp.asarray(a), jnp.finfo(a.dtype)
    bits = lax.bitcast_convert_type(a, jnp.dtype(f"uint{info.bits}"))
    sign = 1 - 2 * (lax.population_count(bits) % 2).astype(a.dtype)
    return jnp.where(is_whole(a), a, a + times * info.eps * sign * a)


def is_whole(a: Array) -> Array:
    """Whether each is a whole number of which it is taken that no rounding made it."""
    if not jnp.issubdtype(jnp.result_type(a), jnp.inexact):
        return jnp.ones(jnp.shape(a), bool)
    return (a == jnp.round(a)) & (jnp.abs(a) * jnp.finfo(jnp.result_type(a)).eps < WHOLE)
