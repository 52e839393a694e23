"""Whether a module of somebody else does the same at every call, but for its arrays."""

from __future__ import annotations

import enum
import functools
import types
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

LIBRARIES = frozenset({"jax", "jaxlib", "flax", "numpy", "ml_dtypes", "parscan_bp"})
"""Libraries whose functions and classes read nothing that a caller may change meanwhile."""

_PLAIN = (type(None), bool, int, float, complex, str, bytes, types.EllipsisType)
_BUILDING = "_pytree__"
"""How names begin under which Flax says where and when a module was made."""


def is_fixed(value: Any) -> bool:
    """Whether a module with all that it holds is made of the libraries, beside its arrays.

    What a class or a function of the caller's own reads (globals, what it closes over, attributes
    of classes) may change from one call to the next, and nothing would show it: neither the types
    of its arguments nor the attributes of the module. Where all is of the libraries, these are all
    there is, and arrays are arguments, whatever module holds them.

    Example:
      >>> import fractions, jax
      >>> is_fixed((jax.nn.relu, {"features": 3})), is_fixed(fractions.Fraction(1, 2))
      (True, False)
    """
    return _is_fixed(value, set())


def _is_fixed(value: Any, seen: set[int]) -> bool:
    if isinstance(value, (*_PLAIN, jax.Array, np.dtype, np.generic)) or id(value) in seen:
        return True
    seen.add(id(value))

    def all_fixed(values):
        return all(_is_fixed(v, seen) for v in values)

    if isinstance(value, type):
        return _of_libraries(value)
    if isinstance(value, functools.partial):
        return all_fixed((value.func, *value.args, *value.keywords.values()))
    if isinstance(value, types.FunctionType):
        read = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        read += [cell.cell_contents for cell in value.__closure__ or ()]
        return _of_libraries(value) and all_fixed(read)
    if type(value) in (tuple, list, set, frozenset):
        return all_fixed(value)
    if type(value) is dict or (isinstance(value, Mapping) and _of_libraries(type(value))):
        return all_fixed((*value.keys(), *value.values()))
    if not _of_libraries(type(value)):
        return False
    if hasattr(value, "__wrapped__"):  # what a transformation of JAX made of a function
        return all_fixed([value.__wrapped__])
    if hasattr(value, "get_metadata"):  # a variable of Flax
        return all_fixed([value.get_metadata()])
    if isinstance(value, enum.Enum):
        return True
    own = getattr(value, "__dict__", None)
    return own is not None and all_fixed(
        v for name, v in own.items() if not name.startswith(_BUILDING)
    )


def _of_libraries(thing: Any) -> bool:
    return (getattr(thing, "__module__", None) or "").partition(".")[0] in LIBRARIES
