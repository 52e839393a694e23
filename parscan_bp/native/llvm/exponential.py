"""exp, and the functions that are made of it, for vectors of numbers.

With z = k log 2 + r, k whole and |r| <= (log 2) / 2, and q = exp(r) - 1 by its series,

    exp(z) = 2^k (1 + q),      exp(z) - 1 = 2^k q + (2^k - 1),

of which the second has all its digits also where z is small. Then, with z = 2 |x|,

    logistic(x) = 1 / (1 + exp(-x)),      tanh(x) = sign(x) e / (e + 2),  e = exp(z) - 1.
"""

from __future__ import annotations

import dataclasses
import decimal
import math
from typing import Any

import llvmlite.ir as ir

from parscan_bp.native.llvm.vectors import I32, I64, Code, width_of


@dataclasses.dataclass(frozen=True)
class _Format:
    """A type of float.

    Attributes:
      terms: of the series, so that what is left out is below the last bit.
      high, low: log 2 in two parts, of which whole multiples of the first are exact.
      mantissa, bias: bits, and what is added to the exponent.
      most: beyond it, up or down, exp is infinite or zero.
      integer: of the same number of bits.
    """

    terms: int
    high: float
    low: float
    mantissa: int
    bias: int
    most: float
    integer: Any


def _parts(bits: int) -> tuple[float, float]:
    """log 2 cut to some bits, and the rest."""
    whole = decimal.Context(prec=60).ln(decimal.Decimal(2))
    high = math.floor(whole * 2**bits) / 2**bits
    return high, float(whole - decimal.Decimal(high))


_FORMATS = {
    "float32": _Format(7, *_parts(13), 23, 127, 110.0, I32),
    "float64": _Format(14, *_parts(32), 52, 1023, 760.0, I64),
}


def exp(code: Code, params: Any, x: Any) -> Any:
    width = width_of(x)
    whole, q = _reduced(code, _within(code, x, _FORMATS[code.dtype].most))
    one = code.const(1.0, width)
    half = code.call("floor", code.builder.fmul(whole, code.const(0.5, width)))
    scaled = code.builder.fmul(code.builder.fadd(one, q), _power(code, half))
    return code.builder.fmul(scaled, _power(code, code.builder.fsub(whole, half)))


def expm1(code: Code, params: Any, x: Any) -> Any:
    """The second of the two; zeros keep their sign, and what is large is exp."""
    builder, width = code.builder, width_of(x)
    made = _minus_one(code, _within(code, x, 64.0))
    large = builder.fcmp_ordered(">", x, code.const(60.0, width))
    made = builder.select(large, exp(code, params, x), made)
    return builder.select(builder.fcmp_ordered("==", x, code.const(0.0, width)), x, made)


def logistic(code: Code, params: Any, x: Any) -> Any:
    one = code.const(1.0, width_of(x))
    return code.builder.fdiv(one, code.builder.fadd(one, exp(code, params, code.builder.fneg(x))))


def tanh(code: Code, params: Any, x: Any) -> Any:
    builder, width = code.builder, width_of(x)
    size = code.call("fabs", x)
    e = _minus_one(code, _within(code, builder.fadd(size, size), 44.0))
    positive = builder.fdiv(e, builder.fadd(e, code.const(2.0, width)))
    return code.call("copysign", positive, x)


def _minus_one(code: Code, z: Any) -> Any:
    """exp(z) - 1, of numbers that are not large."""
    whole, q = _reduced(code, z)
    power = _power(code, whole)
    return code.fma(power, q, code.builder.fsub(power, code.const(1.0, width_of(z))))


def _within(code: Code, x: Any, most: float) -> Any:
    """The numbers cut to a range; NaN stays."""
    builder = code.builder
    for how, end in (("<", -most), (">", most)):
        end = code.const(end, width_of(x))
        x = builder.select(builder.fcmp_ordered(how, x, end), end, x)
    return x


def _reduced(code: Code, z: Any) -> tuple[Any, Any]:
    """k, as a float, and exp(r) - 1."""
    builder, width, of = code.builder, width_of(z), _FORMATS[code.dtype]
    const = lambda value: code.const(value, width)  # noqa: E731
    whole = code.call("rint", builder.fmul(z, const(1 / math.log(2))))
    r = code.fma(whole, const(-of.high), z)
    r = code.fma(whole, const(-of.low), r)
    series = const(1 / math.factorial(of.terms))
    for k in range(of.terms - 1, 1, -1):
        series = code.fma(series, r, const(1 / math.factorial(k)))
    return whole, code.fma(builder.fmul(r, r), series, r)


def _power(code: Code, whole: Any) -> Any:
    """2^k, by its bits."""
    of, width = _FORMATS[code.dtype], width_of(whole)
    integer = of.integer if width == 1 else ir.VectorType(of.integer, width)

    def const(value):
        one = ir.Constant(of.integer, value)
        return one if width == 1 else ir.Constant(integer, [one] * width)

    bits = code.builder.add(code.builder.fptosi(whole, integer), const(of.bias))
    return code.builder.bitcast(code.builder.shl(bits, const(of.mantissa)), whole.type)
