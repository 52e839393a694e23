"""What was measured of a scan on this machine, remembered between processes (`store`)."""

from __future__ import annotations

import dataclasses
import datetime
import math
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from parscan_bp import solvers
from parscan_bp.choice import store
from parscan_bp.choice.device import device_kind
from parscan_bp.solvers import Solver


@dataclasses.dataclass(frozen=True)
class Timing:
    """What one candidate took.

    Attributes:
      name: the candidate.
      seconds: median of its samples.
      speedup, low, high: over the solver that the rules chose, with its 95 % interval.
    """

    name: str
    seconds: float
    speedup: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Remembered:
    """What a race said.

    Attributes:
      solver: the winner; ``None`` for `jax.lax.scan` itself.
      timings: of all candidates.
      date: the day.
    """

    solver: Solver | None
    timings: tuple[Timing, ...]
    date: str = dataclasses.field(default_factory=lambda: datetime.date.today().isoformat())

    @property
    def reason(self) -> str:
        """The table in one line."""
        return told(self.timings, self.date)


def told(timings: Sequence[Timing], date: str) -> str:
    """A table of timings in one line."""
    named = ", ".join(f"{t.name} {1e3 * t.seconds:.3g} ms" for t in timings)
    return f"measured on this machine on {date}: {named}"


def key_of(jaxpr: Any, length: int, unroll: int | bool) -> str:
    """What a measurement holds for: a step, about so many of them, and this machine.

    Args:
      jaxpr: the scan body, with the types of all that it takes.
      length: number of steps; lengths within a factor of the square root of 2 are one.
      unroll: as in `jax.lax.scan`.
    """
    # Of functions that a program names, the address says nothing.
    text = re.sub(r"0x[0-9a-f]+", "", str(jaxpr))
    about = round(2 * math.log2(max(length, 1)))
    how = f"length 2**({about}/2), unroll {unroll}"
    return "\n".join([text, how, device_kind(), f"jax {jax.__version__}"])


def recall(key: str) -> Remembered | None:
    """What was measured for a key; ``None`` if nothing was, or what is there cannot be read."""
    return store.read(key, _parsed)


def remember(key: str, found: Remembered) -> pathlib.Path | None:
    """Writes it down for this process and later ones; where to, or ``None`` if nothing is kept.

    Raises:
      OSError: if the folder cannot be written to.
    """
    timings = [dataclasses.asdict(t) for t in found.timings]
    held = {"solver": described(found.solver), "timings": timings, "date": found.date}
    return store.write(key, held)


def _parsed(held: Mapping[str, Any]) -> Remembered:
    timings = tuple(Timing(**t) for t in held["timings"])
    return Remembered(solver_of(held["solver"]), timings, held["date"])


def described(solver: Any) -> Any:
    """A solver as JSON: its name and its options, solvers among them."""
    if not isinstance(solver, Solver):
        return solver
    fields = dataclasses.fields(solver)  # type: ignore[arg-type]
    options = {f.name: described(getattr(solver, f.name)) for f in fields}
    return {"solver": type(solver).__name__, "options": options}


def solver_of(held: Any) -> Any:
    """The inverse of `described`.

    Raises:
      ValueError, TypeError, AttributeError: if there is no such solver.
    """
    if not isinstance(held, dict):
        return held
    kind = getattr(solvers, held["solver"])
    if not (isinstance(kind, type) and issubclass(kind, Solver)):
        raise ValueError(f"{held['solver']} is no solver")
    return kind(**{name: solver_of(value) for name, value in held["options"].items()})
