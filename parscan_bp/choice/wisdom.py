"""What was measured of a scan on this machine, remembered between processes (`store`)."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import json
import math
import pathlib
import re
import sys
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import jax

from parscan_bp import solvers, store
from parscan_bp.arguments import check_positive
from parscan_bp.device_kind import device_kind
from parscan_bp.linearise.body import Body
from parscan_bp.solvers import (
    Associative,
    Blelloch,
    Chunked,
    ChunkedCorrections,
    Pallas,
    Solver,
    Sweep,
)


@dataclasses.dataclass(frozen=True)
class Timing:
    """What one candidate took.

    Attributes:
      name: the candidate.
      seconds: median of its samples.
      speedup, low, high: over the solver that the rules chose, with its 95 % interval.
      bytes: temporary memory; ``None`` where that is not known.
    """

    name: str
    seconds: float
    speedup: float
    low: float
    high: float
    bytes: int | None = None


Winner = TypeVar("Winner")


@dataclasses.dataclass(frozen=True)
class Remembered(Generic[Winner]):
    """What a race said.

    Attributes:
      winner: a solver, or ``None`` for `jax.lax.scan` itself; of forward passes a method, or
        "exact" for that.
      timings: of all candidates.
      date: the day.
    """

    winner: Winner
    timings: tuple[Timing, ...]
    date: str = dataclasses.field(default_factory=lambda: datetime.date.today().isoformat())

    @property
    def reason(self) -> str:
        """The table in one line."""
        named = ", ".join(f"{t.name} {1e3 * t.seconds:.3g} ms" for t in self.timings)
        return f"measured on this machine on {self.date}: {named}"

    def kept(self, winner: Any) -> dict[str, Any]:
        """As JSON, of which `from_kept` makes it again.

        Args:
          winner: the winner as JSON, by its name.
        """
        return {
            **winner,
            "timings": [dataclasses.asdict(t) for t in self.timings],
            "date": self.date,
        }

    @classmethod
    def from_kept(cls, winner: Winner, held: Mapping[str, Any]) -> Remembered[Winner]:
        """The inverse of `kept`; raises as `_parsed`."""
        timings = tuple(Timing(**t) for t in held["timings"])
        if not timings:
            raise ValueError("there are no timings")
        for timing in timings:
            if not timing.name.isprintable():
                raise ValueError(f"the name {timing.name!r} is none that is printed")
            for name in ("seconds", "speedup", "low", "high"):
                check_positive(name, getattr(timing, name))
        return cls(winner, timings, datetime.date.fromisoformat(held["date"]).isoformat())


def scan_key(body: Body, length: int, unroll: int | bool) -> str:
    """What a measurement holds for: a step, about so many of them, and this machine.

    Args:
      body: the step: its program, the types of all that it takes, and what of that is carried.
      length: number of steps; lengths within a factor of the square root of 2 are one.
      unroll: as in `jax.lax.scan`.
    """
    # One program is several steps: inputs are (constants, carry, x), outputs (carry, y).
    parts = f"{body.num_consts} constants, {body.num_carry} carried"
    about = round(2 * math.log2(max(length, 1)))
    how = f"length 2**({about}/2), unroll {unroll}"
    return "\n".join([_text(body.jaxpr), parts, how, device_kind(), f"jax {jax.__version__}"])


_ADDRESS = re.compile(r"0x[0-9a-f]+")
_SET = re.compile(r"\{([^{}:;\n]*)\}")


def _text(jaxpr: Any) -> str:
    """A program as text that is the same in every process.

    Of functions that a program names, the address says nothing; of sets, such as those of names
    in a policy of `jax.checkpoint`, the order of the elements, which is that of their hashes.
    """
    text = _ADDRESS.sub("", str(jaxpr))
    return _SET.sub(lambda found: "{" + ", ".join(sorted(found[1].split(", "))) + "}", text)


def recall(key: str) -> Remembered[Solver | None] | None:
    """What was measured for a key; ``None`` if nothing was, or what is there cannot be read."""
    return store.read(key, _parsed)


def remember(key: str, found: Remembered[Solver | None]) -> pathlib.Path | None:
    """Writes it down for this process and later ones; where to, see `store.write`.

    Raises:
      ValueError: for a solver that is never raced, or that ``None`` may not stand for.
    """
    _check_remembered(found.winner)
    return store.write(key, found.kept({"solver": as_json(found.winner)}))


def _parsed(held: Mapping[str, Any]) -> Remembered[Solver | None]:
    """What `remember` wrote.

    Raises:
      ValueError, TypeError, AttributeError, KeyError: if it is nothing that a race may say.
    """
    solver = None if held["solver"] is None else solver_of(held["solver"])
    _check_remembered(solver)
    return Remembered.from_kept(solver, held)


RACED = (Sweep, Chunked, ChunkedCorrections, Blelloch, Associative, Pallas)
"""The package's solvers that are raced unasked; others of it are never remembered."""


def is_remembered(solver: Solver | None) -> bool:
    """Whether ``None`` may stand for it: finite where `lax.scan` is, whatever the values.

    Of the package's own it is one of the `RACED`.
    """
    return solver is None or (solver.in_range and _never_raced(solver) is None)


def _never_raced(solver: Solver) -> type | None:
    """The solver of the package inside of which nothing is raced, itself included."""
    if _is_ours(type(solver)) and type(solver) not in RACED:
        return type(solver)
    return None if solver.inner is None else _never_raced(solver.inner)


def _check_remembered(solver: Solver | None) -> None:
    if solver is not None and (kind := _never_raced(solver)):
        raise ValueError(f"{kind.__name__} is never raced")
    if not is_remembered(solver):
        raise ValueError(
            f"solver: got {solver!r}, whose products of Jacobians may overflow where lax.scan's "
            "derivatives are finite; a measurement does not know the values of later calls. One "
            "that multiplies vectors alone, or is scaled, is wanted"
        )


def check_can_be_written(name: str, thing: Any) -> None:
    """Raises `ValueError` unless later processes can make it again of its class and options."""
    kind = type(thing)
    try:
        if class_named(class_name(kind), solvers) is not kind:
            raise ValueError("another class has its name now")
        json.dumps(as_json(thing))
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"{name}: got {thing!r}, which cannot be remembered: {error}; a dataclass at the top "
            "of a module, of options that are numbers, strings or solvers, is wanted"
        ) from None


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "parscan_bp"


def class_name(kind: type) -> str:
    """What a class is remembered by: of somebody else's, the module, too."""
    return kind.__name__ if _is_ours(kind) else f"{kind.__module__}:{kind.__qualname__}"


def class_named(name: str, home: Any) -> Any:
    """The inverse of `class_name`; ``home`` has the package's own.

    Nothing is imported: a file in a folder does not say which programs are run.

    Raises:
      ValueError, AttributeError: if there is none, or its module has not been imported.
    """
    module, colon, path = name.partition(":")
    if not colon:
        return getattr(home, name)
    if module not in sys.modules:
        raise ValueError(f"{module}, which has {path}, is not imported")
    return functools.reduce(getattr, path.split("."), sys.modules[module])


def as_json(solver: Any) -> Any:
    """A solver as JSON: its name and its options, solvers among them."""
    if not isinstance(solver, Solver):
        return solver
    fields = dataclasses.fields(solver)  # type: ignore[arg-type]
    options = {f.name: as_json(getattr(solver, f.name)) for f in fields if f.init}
    return {"solver": class_name(type(solver)), "options": options}


def solver_of(held: Mapping[str, Any]) -> Solver:
    """The inverse of `as_json`.

    Raises:
      ValueError, TypeError, AttributeError, KeyError: if there is no such solver here.
    """
    kind = class_named(held["solver"], solvers)
    if not (isinstance(kind, type) and issubclass(kind, Solver) and kind.exact):
        raise ValueError(f"{held['solver']} is no solver, or leaves something out")
    if kind is Pallas and jax.default_backend() != "gpu":
        raise ValueError("its kernels want a GPU")
    options = held["options"].items()
    return kind(**{k: solver_of(v) if isinstance(v, dict) else v for k, v in options})
