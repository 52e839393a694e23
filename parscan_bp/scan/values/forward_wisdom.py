"""What was measured of a scan's forward pass on this machine, for ``forward="auto"`` alone."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from parscan_bp import forward as methods
from parscan_bp import store
from parscan_bp.choice import wisdom
from parscan_bp.choice.wisdom import Remembered
from parscan_bp.forward import Forward

RememberedForward = Remembered[str | Forward]
"""What a race of methods said."""


def recall(key: str) -> RememberedForward | None:
    """What was measured for the key of a scan; ``None`` if nothing was."""
    return store.read(_key(key), _parsed)


def remember(key: str, found: RememberedForward) -> pathlib.Path | None:
    """Writes it down for this process and later ones; where to, see `store.write`.

    Raises:
      ValueError: if the winner has a guess.
    """
    return store.write(_key(key), found.kept({"forward": _described(found.winner)}))


def _key(key: str) -> str:
    return f"forward pass\n{key}"


def _parsed(held: Mapping[str, Any]) -> RememberedForward:
    return Remembered.from_kept(_method(held["forward"]), held)


def _described(forward: str | Forward) -> Any:
    """A method as JSON: its name and its options, a solver among them."""
    if isinstance(forward, str):
        return forward
    if forward.guess is not None:
        raise ValueError(f"forward: {forward!r} is not to be remembered")
    fields = dataclasses.fields(forward)
    options = {f.name: wisdom.as_json(getattr(forward, f.name)) for f in fields}
    return {"method": wisdom.class_name(type(forward)), "options": options}


def _method(held: Any) -> str | Forward:
    """The inverse of `_described`.

    Raises:
      ValueError, TypeError, AttributeError: if there is no such method.
    """
    if held == "exact":
        return held
    kind: Any = wisdom.class_named(held["method"], methods)
    if not (isinstance(kind, type) and issubclass(kind, Forward)):
        raise ValueError(f"{held['method']} is no method")
    make: Callable[..., Forward] = kind
    options = held["options"].items()
    return make(**{k: wisdom.solver_of(v) if isinstance(v, dict) else v for k, v in options})
