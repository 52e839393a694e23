"""What a layer does, as a key; where that may change, there is none."""

from __future__ import annotations

import dataclasses
import functools
import sys
import types
from collections.abc import Hashable
from typing import Any

import numpy as np

from parscan_bp.layers.base import Layer
from parscan_bp.layers.joints import Joint
from parscan_bp.sparsity import Pattern

_PLAIN = (type(None), bool, int, float, complex, str, bytes, np.dtype, np.generic)
_LIBRARIES = ("jax", "flax", "numpy", "parscan_bp")
"""Whose functions read nothing that changes."""


def key_of(thing: Any) -> Hashable | None:
    """A key that two things share only if they do the same, now and later.

    It holds all that the behaviour depends on: for a function its code, what it closes over, its
    defaults and the globals that it reads. Numbers and strings enter by value; modules, functions
    of JAX and the like, and what else stands in a module under its own name, by themselves.

    Returns:
      ``None`` where the behaviour depends on something that can change or is traced, such as an
      array, a list or an object with state.

    Example:
      >>> from parscan_bp.layers import Elementwise
      >>> from parscan_bp.layers.keys import key_of
      >>> scale = lambda a: Elementwise(lambda x: a * x)
      >>> key_of(scale(2.0)) == key_of(scale(2.0)), key_of(scale(2.0)) == key_of(scale(2))
      (True, False)
      >>> key_of(scale([2.0])) is None
      True
    """
    try:
        return _key(thing, ())
    except _Changeable:
        return None


class _Changeable(Exception):
    """Something has no key."""


def _key(thing: Any, within: tuple[Any, ...]) -> Hashable:
    """The key, or `_Changeable`. ``within`` are the functions that it is looked up for."""
    if isinstance(thing, _PLAIN):
        # 1, 1.0 and True are equal, as are 0.0 and -0.0.
        return type(thing), repr(thing)
    if isinstance(thing, tuple):
        return type(thing), tuple(_key(part, within) for part in thing)
    if isinstance(thing, types.FunctionType) and _library(thing) not in _LIBRARIES:
        return _function_key(thing, within)
    if isinstance(thing, types.ModuleType | Pattern) or _is_named(thing):
        return thing
    if isinstance(thing, types.FunctionType):
        return _function_key(thing, within)
    if isinstance(thing, functools.partial):
        keywords = tuple(sorted(thing.keywords.items()))
        return "partial", _key((thing.func, thing.args, keywords), within)
    if isinstance(thing, Layer | Joint) and _is_named(type(thing)):
        names = sorted(field.name for field in dataclasses.fields(thing))
        if type(thing).__eq__ is not object.__eq__ and names == sorted(vars(thing)):
            return type(thing), _key(tuple(getattr(thing, name) for name in names), within)
    raise _Changeable


def _library(function: types.FunctionType) -> str:
    return (function.__module__ or "").partition(".")[0]


def _function_key(function: types.FunctionType, within: tuple[Any, ...]) -> Hashable:
    if function in within:  # it calls itself
        return "again", within.index(function)
    within = (*within, function)
    code, scope = function.__code__, function.__globals__
    cells = tuple(_contents(cell) for cell in function.__closure__ or ())
    names = sorted(_names(code) & scope.keys())
    defaults = (function.__defaults__, tuple(sorted((function.__kwdefaults__ or {}).items())))
    read = tuple((name, scope[name]) for name in names)
    return code, _key((cells, defaults, read), within)


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        raise _Changeable from None


def _names(code: types.CodeType) -> set[str]:
    """The names that a function may read from its module, or from what it finds there."""
    inner = [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return set(code.co_names).union(*map(_names, inner))


def _is_named(thing: Any) -> bool:
    """Whether it is a function or class that its module has under its own name."""
    if not callable(thing):
        return False
    found: Any = sys.modules.get(getattr(thing, "__module__", None) or "")
    for name in (getattr(thing, "__qualname__", None) or "").split("."):
        found = getattr(found, name, None)
    return found is thing
