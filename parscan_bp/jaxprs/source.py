"""Where in the user's source an equation comes from."""

from __future__ import annotations

import pathlib
from typing import Any

import jax
from jax.extend.core import JaxprEqn

_NOT_THE_USERS = tuple(
    str(folder) + "/"
    for folder in (pathlib.Path(jax.__file__).parent, pathlib.Path(__file__).parent.parent)
)


def source_of(eqn: JaxprEqn) -> str:
    """``file.py:line`` of the innermost call that is neither JAX's nor this package's.

    "unknown" where JAX has kept no traceback.
    """
    traceback: Any = eqn.source_info.traceback
    for frame in () if traceback is None else traceback.frames:
        if not frame.file_name.startswith(_NOT_THE_USERS):
            return f"{pathlib.Path(frame.file_name).name}:{frame.line_num}"
    return "unknown"
