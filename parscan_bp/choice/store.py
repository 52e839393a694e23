"""A folder of small files that several processes write and read: one file for each key.

A file is written aside and then put in its place, so that no process loses what another one wrote.
``PARSCAN_BP_WISDOM`` names another folder than that in the user's cache, or is "off".
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import tempfile
import warnings
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

VARIABLE = "PARSCAN_BP_WISDOM"
SCHEMA = 2
"""Of the files; others are not read."""

T = TypeVar("T")


class _Generation:
    """How often something was written or removed."""

    count = 0


def generation() -> Hashable:
    """What changes with what is kept by this process, and with the folder's name.

    What was looked up holds as long: what other processes write meanwhile is not seen.
    """
    return os.environ.get(VARIABLE), _Generation.count


def folder() -> pathlib.Path | None:
    """Where things are kept; ``None`` if they are not.

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


def read(key: str, parse: Callable[[Mapping[str, Any]], T]) -> T | None:
    """What is kept for a key; ``None`` if nothing is, or what is there cannot be read.

    Args:
      key: any text.
      parse: makes of the file's contents what is returned; what it raises (ValueError, TypeError,
        KeyError or AttributeError) makes the file one that is ignored, with a warning.
    """
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
        return parse(held)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        # A warning of Python is shown once for each text.
        warnings.warn(f"{path}: this measurement is ignored: {error}", stacklevel=3)
        return None


def write(key: str, held: Mapping[str, Any]) -> pathlib.Path | None:
    """Keeps it for this process and later ones; where, or ``None`` if nothing is kept.

    Raises:
      OSError: if the folder cannot be written to.
    """
    path = _path(key)
    if path is None:
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False) as aside:
        json.dump({"schema": SCHEMA, "key": key, **held}, aside, indent=1)
    os.replace(aside.name, path)
    _Generation.count += 1
    return path


def remove(key: str) -> None:
    """Removes what is kept for a key, if anything is."""
    path = _path(key)
    if path is not None:
        path.unlink(missing_ok=True)
        _Generation.count += 1


def _path(key: str) -> pathlib.Path | None:
    where = folder()
    name = hashlib.sha256(key.encode()).hexdigest()[:32]
    return None if where is None else where / f"{name}.json"
