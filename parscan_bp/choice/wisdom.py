"""What was measured on this machine, remembered between processes.

One file for each measurement, written aside and then put in its place, so that several processes
lose nothing of each other's. ``PARSCAN_BP_WISDOM`` names another folder than that in the user's
cache, or is "off".
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
import math
import os
import pathlib
import re
import tempfile
import warnings
from typing import Any

import jax

from parscan_bp import solvers
from parscan_bp.choice.device import device_kind
from parscan_bp.solvers import Solver

VARIABLE = "PARSCAN_BP_WISDOM"
SCHEMA = 1
"""Of the files; others are not read."""


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
        told = ", ".join(f"{t.name} {1e3 * t.seconds:.3g} ms" for t in self.timings)
        return f"measured on this machine on {self.date}: {told}"


class _Generation:
    """How often something was remembered or forgotten: plans that were made before are old."""

    count = 0


def generation() -> int:
    """A number that changes with what is remembered in this process."""
    return _Generation.count


def folder() -> pathlib.Path | None:
    """Where it is kept; ``None`` if it is not.

    Example:
      >>> import os
      >>> os.environ[VARIABLE] = "off"
      >>> folder() is None
      True
    """
    named = os.environ.get(VARIABLE)
    if named is not None:
        return None if named in ("", "off") else pathlib.Path(named)
    cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(cache) / "parscan_bp" / "wisdom"


def key_of(jaxpr: Any, length: int, unroll: int | bool, *, may_keep: bool = False) -> str:
    """What a measurement holds for: a step, about so many of them, and this machine.

    Args:
      jaxpr: the scan body, with the types of all that it takes.
      length: number of steps; lengths within a factor of the square root of 2 are one.
      unroll: as in `jax.lax.scan`.
      may_keep: see `Facts`.
    """
    # Of functions that a program names, the address says nothing.
    text = re.sub(r"0x[0-9a-f]+", "", str(jaxpr))
    about = round(2 * math.log2(max(length, 1)))
    how = f"length 2**({about}/2), unroll {unroll}, may keep {may_keep}"
    return "\n".join([text, how, device_kind(), f"jax {jax.__version__}"])


def recall(key: str) -> Remembered | None:
    """What was measured for a key; ``None`` if nothing was, or what is there cannot be read."""
    path = _path(key)
    if path is None:
        return None
    try:
        text = path.read_text()
    except OSError:
        return None
    try:
        held = json.loads(text)
        if held["schema"] != SCHEMA or held["key"] != key:
            raise ValueError("it is of another version, or of another key")
        timings = tuple(Timing(**t) for t in held["timings"])
        return Remembered(_solver(held["solver"]), timings, held["date"])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        # A warning of Python is shown once for each text.
        warnings.warn(f"{path}: this measurement is ignored: {error}", stacklevel=2)
        return None


def remember(key: str, found: Remembered) -> pathlib.Path | None:
    """Writes it down for this process and later ones; where to, or ``None`` if nothing is kept.

    Raises:
      OSError: if the folder cannot be written to.
    """
    path = _path(key)
    if path is None:
        return None
    held = {
        "schema": SCHEMA,
        "key": key,
        "solver": _described(found.solver),
        "timings": [dataclasses.asdict(t) for t in found.timings],
        "date": found.date,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False) as aside:
        json.dump(held, aside, indent=1)
    os.replace(aside.name, path)
    _Generation.count += 1
    return path


def forget(key: str) -> None:
    """Removes what was remembered for a key, if anything was."""
    path = _path(key)
    if path is not None:
        path.unlink(missing_ok=True)
        _Generation.count += 1


def _path(key: str) -> pathlib.Path | None:
    where = folder()
    name = hashlib.sha256(key.encode()).hexdigest()[:32]
    return None if where is None else where / f"{name}.json"


def _described(solver: Any) -> Any:
    """A solver as JSON: its name and its options, solvers among them."""
    if not isinstance(solver, Solver):
        return solver
    fields = dataclasses.fields(solver)  # type: ignore[arg-type]
    options = {f.name: _described(getattr(solver, f.name)) for f in fields}
    return {"solver": type(solver).__name__, "options": options}


def _solver(held: Any) -> Any:
    """The inverse of `_described`.

    Raises:
      ValueError, TypeError, AttributeError: if there is no such solver.
    """
    if not isinstance(held, dict):
        return held
    kind = getattr(solvers, held["solver"])
    if not (isinstance(kind, type) and issubclass(kind, Solver)):
        raise ValueError(f"{held['solver']} is no solver")
    return kind(**{name: _solver(value) for name, value in held["options"].items()})
