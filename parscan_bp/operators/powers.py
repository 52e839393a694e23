"""Exact scaling by powers of two, over the whole range of a dtype and beyond it.

``jax.numpy.frexp`` and ``ldexp`` differ between jax versions in what they do with half-precision
and subnormal numbers. Here the exponent field is read and written by its bits, so that the result
is the same everywhere.
"""

from __future__ import annotations

import functools

import jax.numpy as jnp
import numpy as np
from jax import lax

from parscan_bp.types import Array

_UINT = {16: np.uint16, 32: np.uint32, 64: np.uint64}


def _layout(dtype: np.dtype) -> tuple[int, int, type]:
    """(mantissa bits, exponent bias, unsigned integer of the same width) of a real dtype."""
    info = jnp.finfo(dtype)
    return info.nmant, 1 - int(info.minexp), _UINT[info.bits]


def _power_of_two(exponent: Array, dtype: np.dtype) -> Array:
    """2**exponent, for an exponent whose power is a normal number of ``dtype``."""
    mantissa_bits, bias, uint = _layout(dtype)
    return lax.bitcast_convert_type((exponent + bias).astype(uint) << uint(mantissa_bits), dtype)


def ldexp(x: Array, exponent: Array) -> Array:
    """x 2**exponent, exact unless the result leaves the dtype's range.

    The power is applied as three factors of nearly equal size and the same sign, so a partial
    product overflows or underflows only if the result does, and an exponent of any size saturates
    to infinity or 0. Two factors would not do: the smallest float32 is 2**-126, or 2**254 below
    overflow, and 2**-127 is not a normal number. Infinities, NaN and zeros stay as they are.
    Differentiable in ``x``.

    Args:
      x: real or complex array.
      exponent: integer array that broadcasts with ``x``.

    Returns:
      An array of the dtype of ``x``.

    Example:
      >>> import jax.numpy as jnp
      >>> ldexp(jnp.array([2.0**-120, 0.0]), jnp.array(240)).tolist() == [2.0**120, 0.0]
      True
    """
    dtype = jnp.result_type(x)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        # A complex times a real number would make inf * 0 = NaN of an infinite part.
        return lax.complex(ldexp(jnp.real(x), exponent), ldexp(jnp.imag(x), exponent))
    limit = -3 * int(jnp.finfo(dtype).minexp)
    exponent = jnp.clip(jnp.asarray(exponent, jnp.int32), -limit, limit)
    third = exponent // 3
    half = (exponent - third) // 2
    factors = [_power_of_two(part, dtype) for part in (third, half, exponent - third - half)]
    # XLA turns x * c1 * c2 into x * (c1 * c2) where both are constants, and c1 * c2 overflows.
    for factor in lax.optimization_barrier(factors):
        x = x * factor
    return x


def largest_exponent(x: Array, ndim: int) -> Array:
    """The e with max |x| in [2**(e-1), 2**e), over the last ``ndim`` axes.

    |x| of a complex entry is the larger of its two parts' magnitudes, which never overflows.
    Non-finite entries are left out: one of them does not decide about the rest. Where no finite
    normal entry is left, e is 0.

    Args:
      x: real or complex array.
      ndim: number of trailing axes to take the maximum over.

    Returns:
      int32 array of the leading axes. Piecewise constant: its derivative is 0.

    Example:
      >>> import jax.numpy as jnp
      >>> largest_exponent(jnp.array([[3.0, 1.0], [0.0, 0.0]]), 1).tolist()
      [2, 0]
    """
    x = lax.stop_gradient(x)
    is_complex = jnp.issubdtype(x.dtype, jnp.complexfloating)
    parts = (jnp.real(x), jnp.imag(x)) if is_complex else (x,)
    magnitudes = [jnp.where(jnp.isfinite(part), jnp.abs(part), 0) for part in parts]
    magnitude = functools.reduce(jnp.maximum, magnitudes)
    largest = jnp.max(magnitude, axis=_trailing(x, ndim))
    mantissa_bits, bias, uint = _layout(largest.dtype)
    raw = (lax.bitcast_convert_type(largest, uint) >> uint(mantissa_bits)).astype(jnp.int32)
    return jnp.where(raw == 0, 0, raw - (bias - 1))


def normalise(x: Array, ndim: int, exponent: Array | int = 0) -> tuple[Array, Array]:
    """x 2**exponent as a mantissa, its largest finite entry in [0.5, 1), and an exponent.

    Args:
      x: real or complex array.
      ndim: number of trailing axes that share one exponent.
      exponent: the power of two that ``x`` already stands for; integers of its leading axes.

    Returns:
      ``(mantissa, exponent)``: the mantissa has the shape of ``x``, the int32 exponent its
      leading axes. Where ``x`` is zero the exponent is 0: zero has no size. Non-finite entries
      are unchanged.

    Example:
      >>> import jax.numpy as jnp
      >>> mantissa, exponent = normalise(jnp.array([3.0, 1.0]), 1)
      >>> mantissa.tolist(), int(exponent)
      ([0.75, 0.25], 2)
    """
    x = jnp.asarray(x)
    shift = largest_exponent(x, ndim)
    zero = jnp.all(x == 0, axis=_trailing(x, ndim))
    total = jnp.where(zero, 0, shift + jnp.asarray(exponent, jnp.int32))
    return ldexp(x, -jnp.expand_dims(shift, _trailing(x, ndim))), total


def _trailing(x: Array, ndim: int) -> tuple[int, ...]:
    return tuple(range(x.ndim - ndim, x.ndim))
