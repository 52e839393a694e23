"""Where in the user's program an equation was written."""

from __future__ import annotations

import contextlib
import pathlib
from typing import Any, NamedTuple

import jax
from jax.extend.core import JaxprEqn

_LIBRARIES = tuple(
    f"{folder}/"
    for folder in (pathlib.Path(jax.__file__).parent, pathlib.Path(__file__).parents[1])
)


class Line(NamedTuple):
    """A line of a program, and the function that it is in."""

    file: str
    number: int
    function: str


def line_of(eqn: JaxprEqn) -> Line | None:
    """The innermost line that led to an equation and is neither JAX's nor this package's.

    Example:
      >>> import jax.numpy as jnp
      >>> def halved(x):
      ...     return jnp.divide(x, 2)
      >>> line_of(jax.make_jaxpr(halved)(1.0).eqns[0]).function
      'halved'
    """
    traceback: Any = eqn.source_info.traceback
    for frame in () if traceback is None else traceback.frames:
        if not frame.file_name.startswith(_LIBRARIES):
            return Line(frame.file_name, frame.line_num, frame.function_name.split(".")[-1])
    return None


def scope_of(eqn: JaxprEqn) -> contextlib.AbstractContextManager[Any]:
    """The `jax.named_scope` that an equation was made in, for what takes its place."""
    names: Any = str(eqn.source_info.name_stack)
    return jax.named_scope(names) if names else contextlib.nullcontext()


def source_of(eqn: JaxprEqn) -> str:
    """The same as ``file.py:number``, "unknown" where JAX has kept no traceback."""
    line = line_of(eqn)
    return "unknown" if line is None else f"{pathlib.Path(line.file).name}:{line.number}"
