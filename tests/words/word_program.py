"""A program that is written twice: by the package, and by what it replaces."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Program:
    """A function of arrays, written twice.

    Attributes:
      text: how it is printed.
      leaves: its arguments.
      length: its number of steps.
      ours: by the package.
      reference: by `lax.scan`, Flax, or plain automatic differentiation.
      scan: the package's scan by the same solver, for loops around.
      low: whether numbers are rounded to bfloat16 on the way.
    """

    text: str
    leaves: Sequence[np.ndarray]
    length: int
    ours: Callable[..., Any]
    reference: Callable[..., Any]
    scan: Callable[..., Any]
    low: bool = False


def short(solver: Any) -> str:
    """A solver without what it has anyway."""
    if solver is None:
        return "None"
    own = [
        f"{f.name}={getattr(solver, f.name)!r}"
        for f in dataclasses.fields(solver)
        if getattr(solver, f.name) != f.default
    ]
    return f"{type(solver).__name__}({', '.join(own)})"
