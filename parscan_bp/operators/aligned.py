"""Sums of products whose factors have an exponent each, aligned term by term.

In every sum the terms are brought to the exponent of the largest one, the max-plus product of the
exponents, so that what is added is what an accumulator of unlimited range would add, up to 2**-126
of the largest term in single precision. Arrays in, arrays out.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from parscan_bp.operators.arithmetic import accumulation_dtype
from parscan_bp.operators.powers import EXPONENT_LIMIT, ldexp, normalise, power_of_two
from parscan_bp.types import Array

ZERO_EXPONENT = -4 * EXPONENT_LIMIT
"""Stands for the exponent of 0. A term with a 0 is below all others, and int32 holds the sum of two
of these."""


def scaled_terms(mantissa: Array, exponent: Array, v: Array) -> Array:
    """mantissa 2**exponent v, entry by entry, in the dtype of sums.

    Mantissas are in [0.5, 1). The vector is scaled first and multiplied by a number in [1, 2): what
    is scaled is never larger than the result, which so overflows only if it should, and only
    results next to the smallest normal number may be flushed to zero with it.

    Example:
      >>> import jax.numpy as jnp
      >>> scaled_terms(jnp.array([0.5]), jnp.array([131]), jnp.array([2.0**-120])).tolist()
      [1024.0]
    """
    dtype = accumulation_dtype(jnp.result_type(mantissa, v))
    return ldexp(jnp.asarray(v, dtype), exponent - 1) * (2 * jnp.asarray(mantissa, dtype))


def aligned_matmul(
    left: Array, left_exponent: Array, right: Array, right_exponent: Array
) -> tuple[Array, Array]:
    """The product of (..., m, k) and (..., k, n), an exponent beside each entry of all three.

    The error of an entry is that of a plain product in a dtype without ends: a few roundings of the
    sum of its terms' magnitudes. Infinities and NaN give what they give in a plain product.

    Args:
      left, right: mantissas, in [0.5, 1) or 0 or not finite.
      left_exponent, right_exponent: int32, of the same shapes.

    Returns:
      ``(mantissa, exponent)`` of the product, normalised; zeros have exponent 0. Differentiable in
      the mantissas, at fixed exponents.

    Source: the exponents are a product in the max-plus semiring; the sums, standard.

    Example:
      >>> import jax.numpy as jnp
      >>> half, up = jnp.full((1, 2), 0.5), jnp.array([[200, -200]])
      >>> mantissa, exponent = aligned_matmul(half, up, half.T, -up.T)
      >>> mantissa.tolist(), exponent.tolist()
      ([[0.5]], [[0]])
    """
    ndim = max(jnp.ndim(left), jnp.ndim(right))
    operands = (left, left_exponent, right, right_exponent)
    return _product(*[jnp.expand_dims(a, range(ndim - jnp.ndim(a))) for a in operands])


@jax.custom_jvp
def _product(left, left_exponent, right, right_exponent):
    """`aligned_matmul` of operands of one rank."""
    dtype = jnp.result_type(left, right)
    wide = accumulation_dtype(dtype)
    lowest = jnp.finfo(wide).minexp
    lefts, rights = _columns(jnp.asarray(left, wide)), _rows(jnp.asarray(right, wide))
    ups = _columns(_masked(left, left_exponent)), _rows(_masked(right, right_exponent))

    def highest(k, top):
        return jnp.maximum(top, ups[0][k] + ups[1][k])

    def add(k, total):
        # A term further below the largest one counts as 2**lowest of it and not as 0: it may be
        # infinite.
        below = jnp.maximum(ups[0][k] + ups[1][k] - top, lowest)
        return total + lefts[k] * rights[k] * power_of_two(below, jnp.finfo(wide).dtype)

    terms = left.shape[-1]
    unroll = max(1, min(terms, _UNROLL[terms > _LONG]))
    # The sum of no terms; inside `jax.shard_map` it varies over the axes of both operands.
    nothing = jnp.sum(lefts[:0] * rights[:0], axis=0)
    if not terms:
        return normalise(nothing.astype(dtype))
    lowest_sum = jnp.full_like(nothing, 2 * ZERO_EXPONENT, jnp.int32)
    top = lax.fori_loop(0, terms, highest, lowest_sum, unroll=unroll)
    total = lax.fori_loop(0, terms, add, nothing, unroll=unroll)
    mantissa, exponent = normalise(total, top)
    return mantissa.astype(dtype), exponent


@_product.defjvp
def _pushforward(primals, tangents):
    # Not the derivative of the code above: where a factor is 0, its exponent is no bound on the
    # size of its tangent, and the shifts may be upwards.
    left, left_exponent, right, right_exponent = primals
    left_tangent, _, right_tangent, _ = tangents
    mantissa, exponent = _product(*primals)
    outer = lambda left, right: _columns(left) * _rows(right)  # noqa: E731
    terms = outer(left_tangent, right) + outer(left, right_tangent)
    terms = jnp.asarray(terms, accumulation_dtype(mantissa.dtype))
    ups = _columns(left_exponent) + _rows(right_exponent)
    total = jnp.sum(ldexp(terms, ups - exponent), axis=0)
    no_tangent = np.zeros(exponent.shape, jax.dtypes.float0)
    return (mantissa, exponent), (total.astype(mantissa.dtype), no_tangent)


_UNROLL, _LONG = (16, 4), 32
"""Terms of the sums that one iteration adds, up to so many terms and beyond: measured on a CPU,
where that is 5 to 25 times as slow as a plain product, and no slower up to order 4."""


def _columns(matrix: Array) -> Array:
    """The factors of term k, (k, ..., m, 1)."""
    return jnp.moveaxis(matrix, -1, 0)[..., None]


def _rows(matrix: Array) -> Array:
    """The factors of term k, (k, ..., 1, n)."""
    return jnp.moveaxis(matrix, -2, 0)[..., None, :]


def _masked(mantissa: Array, exponent: Array) -> Array:
    return jnp.where(lax.stop_gradient(mantissa) == 0, ZERO_EXPONENT, exponent)
