"""What a report says of a result, and how it is printed."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

import jax
import numpy as np

SHOWN = 6
"""Numbers of an array that are printed one by one."""


class Status(enum.IntEnum):
    """What `Report.status` says.

    Attributes:
      OK: the solution is finite, and that of the system up to rounding; or, of a solver that
        iterates, up to the tolerance that it was given, in the norm that this is about.
      NON_FINITE: it has an infinity or NaN, or the product that would check it has, or a value of
        the scan or chain. Where the system itself has them, so has the solution of every solver.
      INACCURATE: it is finite, and the residual is larger than the bound; nor has a solver that
        iterates come to the tolerance that it was given.
      BREAKDOWN: so it is, and the solver that iterates could not go on.
      UNCERTIFIED: the values are those of a parallel forward pass, and may be further from those of
        the recurrence than was allowed, see `Report.forward`.
    """

    OK = 0
    NON_FINITE = 1
    INACCURATE = 2
    BREAKDOWN = 3
    UNCERTIFIED = 4


def as_told(report: Any) -> str:
    """A report in a line: numbers, a status by its name, of long arrays shape and range.

    Args:
      report: a dataclass of arrays, of reports, and of ``None``, which is left out.

    Example:
      >>> import jax.numpy as jnp, parscan_bp as pb
      >>> step = lambda h, x: (jnp.tanh(0.5 * h + x), h)
      >>> report = pb.scan(step, 0.0, jnp.ones(99), report=True)[-1]
      >>> print(report)
      Report(status=OK, residual=0, iterations=1, bound=0.000119, fell_back=False)
    """
    fields = ((f.name, getattr(report, f.name)) for f in dataclasses.fields(report))
    told = [f"{name}={_value(name, value)}" for name, value in fields if value is not None]
    return f"{type(report).__name__}({', '.join(told)})"


def _value(name: str, value: Any) -> str:
    if dataclasses.is_dataclass(value):
        return str(value)
    leaves = jax.tree.leaves(value)
    if len(leaves) != 1 or leaves[0] is not value:
        return str(jax.tree.map(_type, value)).replace("'", "")
    if isinstance(value, jax.core.Tracer) or not hasattr(value, "dtype"):
        return str(value)
    of_status = name == "status"
    numbers = np.asarray(value)
    if numbers.ndim == 0:
        return _number(numbers, of_status)
    if numbers.size <= SHOWN:
        return f"[{', '.join(_number(each, of_status) for each in numbers.ravel())}]"
    known = numbers[numbers == numbers]  # not NaN
    if not known.size or numbers.dtype.kind not in "biuf":
        return _type(value)
    least, most = (_number(each, of_status) for each in (known.min(), known.max()))
    return f"{_type(value)} of {least} to {most}"


def _type(leaf: Any) -> str:
    return f"{np.dtype(leaf.dtype).name}{list(np.shape(leaf))}"


def _number(number: Any, of_status: bool) -> str:
    if of_status:
        return Status(int(number)).name
    if number.dtype.kind in "biu":
        return str(number.item())
    return f"{float(number):.3g}"
