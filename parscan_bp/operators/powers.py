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

from parscan_bp.operators.arithmetic import accumulation_dtype
from parscan_bp.types import Array

EXPONENT_LIMIT = 2**27
"""Largest exponent, of either sign: that of a million products of float32's largest numbers."""

_UINT = {16: np.uint16, 32: np.uint32, 64: np.uint64}


def _layout(dtype: np.dtype) -> tuple[int, int, type]:
    """(mantissa bits, exponent bias, unsigned integer of the same width) of a real dtype."""
    info = jnp.finfo(dtype)
    return info.nmant, 1 - int(info.minexp), _UINT[info.bits]


def power_of_two(exponent: Array, dtype: np.dtype) -> Array:
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
    factors = [power_of_two(part, dtype) for part in (third, half, exponent - third - half)]
    # XLA turns x * c1 * c2 into x * (c1 * c2) where both are constants, and c1 * c2 overflows.
    for factor in lax.optimization_barrier(factors):
        x = x * factor
    return x


def exponent_of(x: Array) -> Array:
    """The e with |x| in [2**(e-1), 2**e), entry by entry; 0 for zeros and non-finite entries.

    |x| of a complex entry is the larger of its two parts' magnitudes, which never overflows; a part
    that is not finite does not count.

    Args:
      x: real or complex array.

    Returns:
      int32 array of the shape of ``x``. Piecewise constant: its derivative is 0.

    Example:
      >>> import jax.numpy as jnp
      >>> exponent_of(jnp.array([3.0, 1.0, 0.0, jnp.inf])).tolist()
      [2, 1, 0, 0]
    """
    x = lax.stop_gradient(x)
    is_complex = jnp.issubdtype(x.dtype, jnp.complexfloating)
    parts = (jnp.real(x), jnp.imag(x)) if is_complex else (x,)
    magnitudes = [jnp.where(jnp.isfinite(part), jnp.abs(part), 0) for part in parts]
    magnitude = functools.reduce(jnp.maximum, magnitudes)
    mantissa_bits, bias, _ = _layout(magnitude.dtype)
    # Subnormal numbers have no exponent of their own; times 2**lift they do. Where the backend
    # flushes them, they stay zero.
    lift = mantissa_bits + 1
    raw = _exponent_field(magnitude)
    lifted = _exponent_field(magnitude * 2.0**lift) - lift
    found = jnp.where(raw == 0, lifted, raw) - (bias - 1)
    return jnp.where(magnitude == 0, 0, found)


def normalise(x: Array, exponent: Array | int = 0) -> tuple[Array, Array]:
    """x 2**exponent as mantissas in [0.5, 1) and exponents, entry by entry.

    Args:
      x: real or complex array.
      exponent: the power of two that ``x`` already stands for; integers that broadcast with it.

    Returns:
      ``(mantissa, exponent)`` of the broadcast shape, the exponent in int32. Zeros and non-finite
      entries have exponent 0, or a vector times 2**exponent could make NaN of them. An entry whose
      exponent is beyond `EXPONENT_LIMIT` is NaN: sums of exponents would soon wrap around, and
      nobody would see it.

    Example:
      >>> import jax.numpy as jnp
      >>> mantissa, exponent = normalise(jnp.array([3.0, 1.0, 0.0]), 7)
      >>> mantissa.tolist(), exponent.tolist()
      ([0.75, 0.5, 0.0], [9, 8, 0])
    """
    x, exponent = jnp.broadcast_arrays(x, jnp.asarray(exponent, jnp.int32))
    # Subnormal numbers of half precision are normal in the dtype of sums, and keep all their bits.
    wide = jnp.asarray(x, accumulation_dtype(x.dtype))
    sized = (x != 0) & jnp.isfinite(x)
    total = jnp.where(sized, exponent_of(wide) + exponent, 0)
    # Of a zero, which stays zero, this scales the tangent.
    mantissa = ldexp(wide, exponent - total)
    beyond = jnp.abs(total) > EXPONENT_LIMIT
    mantissa = jnp.where(beyond, jnp.nan, mantissa).astype(x.dtype)
    return mantissa, jnp.where(beyond, 0, total)


def _exponent_field(magnitude: Array) -> Array:
    mantissa_bits, _, uint = _layout(magnitude.dtype)
    bits = lax.bitcast_convert_type(magnitude, uint)
    return (bits >> uint(mantissa_bits)).astype(jnp.int32)
