"""Code of JAX's functions of each number by itself, for a vector of numbers in a register."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jax import lax

from parscan_bp.native.llvm.exponential import exp, expm1, logistic, tanh
from parscan_bp.native.llvm.vectors import I1, width_of

NumberCode = Callable[..., Any]
"""``(code, params, *values) -> value``."""


def _arithmetic(name: str) -> NumberCode:
    return lambda code, params, a, b: getattr(code.builder, name)(a, b, flags=("contract",))


def _compare(how: str) -> NumberCode:
    """IEEE's: false of NaN, but for `!=`."""

    def compare(code, params, a, b):
        kind = code.builder.fcmp_unordered if how == "!=" else code.builder.fcmp_ordered
        return kind(how, a, b)

    return compare


def _bits(name: str) -> NumberCode:
    return lambda code, params, a, b: getattr(code.builder, name)(a, b)


def _negative(code, params, a):
    return code.builder.fneg(a)


def _select(code, params, which, *cases):
    on_false, on_true = cases
    return code.builder.select(which, on_true, on_false)


def _power(code, params, a):
    y = params["y"]
    if not 1 <= abs(y) <= 8:
        return None
    result, square, left = None, a, abs(y)
    while left:
        if left % 2:
            result = square if result is None else code.builder.fmul(result, square)
        left //= 2
        square = code.builder.fmul(square, square) if left else square
    return result if y > 0 else code.builder.fdiv(code.const(1.0, width_of(a)), result)


def _extremum(name: str) -> NumberCode:
    """NaN where either is; of two zeros, the larger is the positive one."""
    return lambda code, params, a, b: code.call(name, a, b)


def _clamped(code, params, low, a, high):
    return code.call("minimum", code.call("maximum", a, low), high)


def _of_library(name: str) -> NumberCode:
    """One number after the other, but for roots."""
    return lambda code, params, a: code.call(name, a)


def _square(code, params, a):
    return code.builder.fmul(a, a)


def _one_minus_square(code, params, a):
    return code.builder.fsub(code.const(1.0, width_of(a)), code.builder.fmul(a, a))


def _logarithm(code, params, a):
    """What is below the least normal number is zero to XLA, and to all other code here."""
    least = code.const(np.finfo(code.dtype).tiny, width_of(a))
    small = code.builder.fcmp_ordered("<", code.call("fabs", a), least)
    zero = code.const(0.0, width_of(a))
    return code.call("log", code.builder.select(small, zero, a))


def _log1p(code, params, a):
    """log u times a / (u - 1), where u = 1 + a as it is rounded; where that is 1, a itself.

    Source: W. Kahan, in D. Goldberg, ACM Computing Surveys 23 (1991), theorem 4.
    """
    builder, one = code.builder, code.const(1.0, width_of(a))
    u = builder.fadd(one, a)
    made = builder.fmul(_logarithm(code, params, u), builder.fdiv(a, builder.fsub(u, one)))
    infinite = builder.fcmp_ordered("==", u, code.const(float("inf"), width_of(a)))
    made = builder.select(infinite, u, made)
    return builder.select(builder.fcmp_ordered("==", u, one), a, made)


def _inverse_root(code, params, a):
    return code.builder.fdiv(code.const(1.0, width_of(a)), code.call("sqrt", a))


def _sign(code, params, a):
    """Zeros and NaN are their own."""
    builder, width = code.builder, width_of(a)
    for how, sign in (("<", -1.0), (">", 1.0)):
        there = builder.fcmp_ordered(how, a, code.const(0.0, width))
        a = builder.select(there, code.const(sign, width), a)
    return a


def _rounded(code, params, a):
    to_even = params["rounding_method"] == lax.RoundingMethod.TO_NEAREST_EVEN
    return code.call("rint" if to_even else "round", a)


def _finite(code, params, a):
    infinite = code.const(float("inf"), width_of(a))
    return code.builder.fcmp_ordered("<", code.call("fabs", a), infinite)


def _not(code, params, a):
    return code.builder.not_(a)


def _converted(code, params, a):
    if is_bool(a):
        return code.builder.uitofp(a, code.type(width_of(a)))
    return a if np.dtype(params["new_dtype"]).name == code.dtype else None


def is_bool(value: Any) -> bool:
    return getattr(value.type, "element", value.type) == I1


FUNCTIONS: dict[str, NumberCode] = {
    "abs": _of_library("fabs"),
    "add": _arithmetic("fadd"),
    "add_any": _arithmetic("fadd"),
    "and": _bits("and_"),
    "ceil": _of_library("ceil"),
    "clamp": _clamped,
    "convert_element_type": _converted,
    "div": _arithmetic("fdiv"),
    "cos": _of_library("cos"),
    "eq": _compare("=="),
    "exp": exp,
    "expm1": expm1,
    "floor": _of_library("floor"),
    "ge": _compare(">="),
    "gt": _compare(">"),
    "integer_pow": _power,
    "is_finite": _finite,
    "le": _compare("<="),
    "log": _logarithm,
    "log1p": _log1p,
    "logistic": logistic,
    "lt": _compare("<"),
    "max": _extremum("maximum"),
    "min": _extremum("minimum"),
    "mul": _arithmetic("fmul"),
    "ne": _compare("!="),
    "neg": _negative,
    "not": _not,
    "one_minus_square": _one_minus_square,
    "or": _bits("or_"),
    "round": _rounded,
    "rsqrt": _inverse_root,
    "select_n": _select,
    "sign": _sign,
    "sin": _of_library("sin"),
    "sqrt": _of_library("sqrt"),
    "square": _square,
    "sub": _arithmetic("fsub"),
    "tanh": tanh,
}
