"""What instructions that touch no memory compute, on arrays of 128 threads."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

TYPES = {
    "pred": np.bool_,
    **dict.fromkeys(("b16", "u16", "bf16"), np.uint16),
    **dict.fromkeys(("b32", "u32"), np.uint32),
    **dict.fromkeys(("b64", "u64"), np.uint64),
    "s16": np.int16,
    "s32": np.int32,
    "s64": np.int64,
    "f32": np.float32,
}
"""The numbers that a register of this kind holds."""


def typed(bits: np.ndarray, kind: str) -> np.ndarray:
    """The bits of a register, read as numbers of a kind."""
    dtype = np.dtype(TYPES[kind])
    if dtype == bits.dtype:
        return bits
    unsigned = np.dtype(f"u{dtype.itemsize}")
    return bits.astype(unsigned).view(dtype) if dtype != np.bool_ else bits.astype(bool)


def bits(numbers: np.ndarray) -> np.ndarray:
    """As a register holds them."""
    return numbers if numbers.dtype == np.bool_ else numbers.view(f"u{numbers.itemsize}")


def compute(parts: list[str], values: list[np.ndarray]) -> np.ndarray:
    """The result of an instruction, of its name's parts and the numbers of its operands."""
    with np.errstate(all="ignore"):
        return OPERATIONS[parts[0]](parts, *values)


def _elementwise(function: Callable) -> Callable:
    return lambda parts, *values: function(*values)


def _exactly(function: Callable) -> Callable:
    """In double precision, then rounded: the hardware's approximations are nearly as good."""
    return lambda parts, *values: function(*[v.astype(np.float64) for v in values]).astype(
        np.float32
    )


def _multiply(parts: list[str], x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if "wide" in parts:
        return _wide(x) * _wide(y)
    if "hi" in parts:
        return ((_wide(x) * _wide(y)) >> (8 * x.itemsize)).astype(x.dtype)
    return x * y


def _wide(x: np.ndarray) -> np.ndarray:
    """With room for a product; of 64 bits, numbers of Python."""
    if x.itemsize == 8:
        return x.astype(object)
    return x.astype(f"{x.dtype.kind}{2 * x.itemsize}")


def _multiply_add(parts: list[str], x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    if x.dtype.kind != "f":
        product = _multiply(parts, x, y)
        return product + z.view(product.dtype)
    exact = x.astype(np.float64) * y.astype(np.float64) + z.astype(np.float64)
    near = exact.astype(np.float32)
    if "rm" not in parts:
        return near
    return np.where(near > exact, np.nextafter(near, np.float32(-np.inf)), near)


def _divide(parts: list[str], x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return x / y if x.dtype.kind == "f" else x // y


def _shift(direction: Callable) -> Callable:
    def shift(parts: list[str], x: np.ndarray, by: np.ndarray) -> np.ndarray:
        width, by = 8 * x.itemsize, by.astype(np.int64)
        kept = np.minimum(by, width - 1)
        out = direction(x, kept.astype(x.dtype))
        return out if x.dtype.kind == "i" else np.where(by >= width, x * 0, out)

    return shift


def _extract(parts: list[str], x: np.ndarray, at: np.ndarray, count: np.ndarray) -> np.ndarray:
    """``count`` bits from ``at`` on; of a signed number the highest is its sign."""
    first, number = int(at[0]), int(count[0])
    field = (x.astype(np.int64) >> first) & ((1 << number) - 1)
    if x.dtype.kind == "i":
        field = np.where(field >> (number - 1), field - (1 << number), field)
    return field.astype(x.dtype)


def _permute(parts: list[str], x: np.ndarray, y: np.ndarray, selector: np.ndarray) -> np.ndarray:
    """Four of the eight bytes of x and y, by the lowest digits of a hexadecimal number."""
    both = np.stack([x, y], axis=1).view(np.uint8)
    digits = (selector[:, None] >> np.arange(0, 16, 4, dtype=np.uint32)) & np.uint32(15)
    assert (digits < 8).all(), "a sign is asked for"
    return np.take_along_axis(both, digits.astype(np.int64), axis=1).view(np.uint32)[:, 0]


def _nan(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.isnan(x) | np.isnan(y)


COMPARISONS: dict[str, Callable] = {
    **{name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "lo": operator.lt,
    "ls": operator.le,
    "hi": operator.gt,
    "hs": operator.ge,
    "nan": _nan,
    "num": lambda x, y: ~_nan(x, y),
    "equ": lambda x, y: ~(x != y) | _nan(x, y),
    "neu": lambda x, y: (x != y) | _nan(x, y),
    "ltu": lambda x, y: ~(x >= y),
    "leu": lambda x, y: ~(x > y),
    "gtu": lambda x, y: ~(x <= y),
    "geu": lambda x, y: ~(x < y),
}
"""Those that end in u hold of NaN, too. (IEEE's ``ne`` does in NumPy alone.)"""

LOGIC = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}


def _compare(parts: list[str], x: np.ndarray, y: np.ndarray, *third: np.ndarray) -> np.ndarray:
    result = COMPARISONS[parts[1]](x, y)
    if parts[1] == "ne" and x.dtype.kind == "f":
        result &= ~_nan(x, y)
    return LOGIC[parts[2]](result, third[0]) if third else result


def _convert(parts: list[str], x: np.ndarray) -> np.ndarray:
    to, of = parts[-2:]
    if to == "bf16":
        raw = x.view(np.uint32).astype(np.uint64)
        return ((raw + 0x7FFF + ((raw >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)).astype(
            np.uint16
        )
    if of == "bf16":
        return (x.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return (np.clip(x, 0, 1) if "sat" in parts else x).astype(TYPES[to])


OPERATIONS: dict[str, Callable[..., Any]] = {
    **{name: _elementwise(f) for name, f in LOGIC.items()},
    "add": _elementwise(operator.add),
    "sub": _elementwise(operator.sub),
    "min": _elementwise(np.fmin),
    "max": _elementwise(np.fmax),
    "rem": _elementwise(np.fmod),
    "not": _elementwise(operator.invert),
    "neg": _elementwise(operator.neg),
    "abs": _elementwise(np.abs),
    "copysign": _elementwise(lambda sign, x: np.copysign(x, sign)),
    "ex2": _exactly(np.exp2),
    "lg2": _exactly(np.log2),
    "rcp": _exactly(np.reciprocal),
    "sqrt": _exactly(np.sqrt),
    "tanh": _exactly(np.tanh),
    "mul": _multiply,
    "mad": _multiply_add,
    "fma": _multiply_add,
    "div": _divide,
    "shl": _shift(operator.lshift),
    "shr": _shift(operator.rshift),
    "bfe": _extract,
    "prmt": _permute,
    "selp": lambda parts, x, y, chosen: np.where(chosen, x, y),
    "setp": _compare,
    "cvt": _convert,
}
"""By the first part of a name."""
