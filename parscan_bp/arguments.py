"""Checks of arguments where they enter: each names the argument, what came, and what is wanted."""

from __future__ import annotations

import dataclasses
import math
import numbers
import operator
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def as_int(name: str, value: Any, least: int = 1) -> int:
    """The integer that ``value`` is, of whatever kind; a bool is none.

    Args:
      name: of the argument.
      value: what came.
      least: the least that it may be.

    Raises:
      TypeError: if it is no integer.
      ValueError: if it is less than ``least``.

    Example:
      >>> import numpy as np
      >>> from parscan_bp.arguments import as_int
      >>> as_int("chunk", np.int64(3))
      3
      >>> as_int("chunk", 3.0)
      Traceback (most recent call last):
      TypeError: chunk: got 3.0, of type float; an int of at least 1 is wanted
    """
    wanted = f"an int of at least {least} is wanted"
    try:
        number = operator.index(value)
        if isinstance(value, bool) or getattr(value, "dtype", None) == np.dtype(bool):
            raise TypeError
    except TypeError:
        raise TypeError(f"{name}: got {described(value)}; {wanted}") from None
    if number < least:
        raise ValueError(f"{name}: got {number}; at least {least} is wanted")
    return number


def options_of(config: Any) -> tuple[dataclasses.Field, ...]:
    """The fields of a dataclass; none of any other class."""
    return dataclasses.fields(config) if dataclasses.is_dataclass(config) else ()


def as_written(config: Any) -> str:
    """A dataclass as one would write it: the options that are shown and not as they come.

    Example:
      >>> import parscan_bp as pb
      >>> as_written(pb.Chunked(chunks=8))
      'Chunked(chunks=8)'
    """
    told = [
        f"{field.name}={getattr(config, field.name)!r}"
        for field in options_of(config)
        if field.repr and getattr(config, field.name) != field.default
    ]
    return f"{type(config).__name__}({', '.join(told)})"


def set_ints(config: Any, optional: Collection[str] = (), **least: int) -> None:
    """Makes fields of a frozen dataclass what `as_int` says; those that are optional may be None.

    Raises:
      TypeError, ValueError: as `as_int`.
    """
    _set_fields(config, as_int, optional, least)


def set_numbers(config: Any, optional: Collection[str] = (), **least: float) -> None:
    """Makes fields of a frozen dataclass what `as_number` says; the optional may be None.

    Raises:
      TypeError, ValueError: as `check_number`.
    """
    _set_fields(config, as_number, optional, least)


def _set_fields(config: Any, made: Callable, optional: Collection[str], least: Mapping) -> None:
    for name, smallest in least.items():
        value = getattr(config, name)
        if value is not None or name not in optional:
            object.__setattr__(config, name, made(name, value, smallest))


def as_number(name: str, value: Any, least: float = 0) -> float:
    """A number of Python's, which takes the dtype of what it meets; NumPy's have one of their own.

    Raises:
      TypeError, ValueError: as `check_number`.
    """
    check_number(name, value, least)
    return value if type(value) in (int, float) else float(value)


def check_bool(name: str, value: Any) -> None:
    """Raises `TypeError` unless ``value`` is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name}: got {described(value)}; True or False is wanted")


def check_number(name: str, value: Any, least: float = 0) -> None:
    """Raises `TypeError` unless ``value`` is a real number, `ValueError` if less than ``least``."""
    wanted = f"a number of at least {least} is wanted"
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name}: got {described(value)}; {wanted}")
    if not float(value) >= least:
        raise ValueError(f"{name}: got {value}; {wanted}")


def check_finite(name: str, value: Any) -> None:
    """Raises `TypeError` or `ValueError` unless ``value`` is a finite number of at least 0."""
    check_number(name, value)
    if value == math.inf:
        raise ValueError(f"{name}: got {value}; a finite number is wanted")


def check_positive(name: str, value: Any, most: float = sys.float_info.max) -> None:
    """Raises `TypeError` unless ``value`` is a real number, `ValueError` unless positive.

    Args:
      name: of the argument.
      value: what came.
      most: what it may be at most; `math.inf` for any size.
    """
    check_number(name, value)
    if not 0 < value <= most:
        bound = "" if most == sys.float_info.max or most == math.inf else f" of at most {most}"
        raise ValueError(f"{name}: got {value}; a positive number{bound} is wanted")


def check_kind(name: str, value: Any, kind: type, wanted: str = "") -> None:
    """Raises `TypeError` unless ``value`` is of a class; ``wanted`` says it in other words."""
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        said = wanted or f"{article} {kind.__name__}"
        raise TypeError(f"{name}: got {described(value)}; {said} is wanted")


def check_optimiser(optimiser: Any) -> None:
    """Raises `TypeError` unless ``optimiser`` is one of optax, of which another can be made."""
    if not all(callable(getattr(optimiser, name, None)) for name in ("init", "update", "_replace")):
        raise TypeError(
            f"optimiser: got {described(optimiser)}; an optax.GradientTransformation is wanted"
        )


def check_key(name: str, key: Any) -> None:
    """Raises `TypeError` unless ``key`` is one random key."""
    try:
        jax.eval_shape(jax.random.fold_in, key, 0)
    except (TypeError, ValueError):
        raise TypeError(
            f"{name}: got {described(key)}; one random key, such as jax.random.key(0), is wanted"
        ) from None


def check_array(name: str, value: Any, wanted: str = "an array is wanted") -> None:
    """Raises `TypeError` unless ``value`` has the shape and the numbers of an array.

    It may be traced, or of shapes and dtypes alone (`jax.ShapeDtypeStruct`).
    """
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if not isinstance(shape, tuple) or dtype is None:
        raise TypeError(f"{name}: got {described(value)}; {wanted}")
    if not (jnp.issubdtype(dtype, np.number) or jnp.issubdtype(dtype, np.bool_)):
        raise TypeError(f"{name}: got an array of {dtype}; {wanted}, of numbers")


def check_concrete(name: str, value: Any, instead: str = "") -> None:
    """Raises `TypeError` if ``value`` has a shape and dtype, but no numbers."""
    if isinstance(value, jax.ShapeDtypeStruct):
        raise TypeError(f"{name}: got a ShapeDtypeStruct; an array is wanted{instead}")


def as_dtype(name: str, value: Any) -> Any:
    """What says of which dtype numbers are, as it came; raises `TypeError` if it does not."""
    try:
        jnp.dtype(value)
    except TypeError:
        raise TypeError(f"{name}: got {described(value)}; a dtype is wanted") from None
    return value


def as_array(name: str, value: Any) -> Any:
    """The array that ``value`` is, of whatever kind; shapes and dtypes alone stay what they are.

    Raises:
      TypeError: if it is none.
    """
    if isinstance(value, jax.ShapeDtypeStruct):
        return value
    try:
        if isinstance(value, str):
            raise TypeError
        return jnp.asarray(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name}: got {described(value)}; an array is wanted") from None


def described(value: Any) -> str:
    """A value and its type, in a few words."""
    if value is None:
        return "None"
    kind, text = type(value).__name__, repr(value)
    if len(text) <= 60 and "\n" not in text:
        return f"{text}, of type {kind}"
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if isinstance(shape, tuple) and dtype is not None:
        return f"an array {dtype}{list(shape)}"
    return f"a value of type {kind}"
