"""A folder of small files that several processes write and read: one file for each key.

A file is written aside and then put in its place, so that no process loses what another one wrote.
``PARSCAN_BP_WISDOM`` names another folder than that in the user's cache; or it is "off", "0" or
empty, and nothing is kept. What others may have written there is not trusted: a file is believed
if it is one that this package writes, and the whole of it.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import pathlib
import stat
import warnings
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

from parscan_bp.replacing import replacing

VARIABLE = "PARSCAN_BP_WISDOM"
OFF = ("off", "0", "")
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
        return None if named.lower() in OFF else pathlib.Path(os.path.expanduser(named))
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    # Of a user without a home, "~" stays.
    return pathlib.Path(cache) / "parscan_bp" / "wisdom" if os.path.isabs(cache) else None


_DAMAGED = (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError)
"""What reading a file raises that is not what it should be."""


def read(key: str, parse: Callable[[Mapping[str, Any]], T]) -> T | None:
    """What is kept for a key; ``None`` if nothing is, or, with a warning, what is there is damaged.

    Args:
      key: any text.
      parse: makes of the file's contents what is returned; it raises `ValueError`, or what Python
        raises of values of a wrong type, where they are not what they should be.
    """
    path = _path(key)
    if path is None:
        return None
    try:
        text = _text(path)
        if text is None:
            return None
        held = json.loads(text)
        if held["schema"] != SCHEMA or held["key"] != key:
            raise ValueError("it is of another version, or of another key")
        return parse(held)
    except (OSError, *_DAMAGED) as error:
        _warn(f"{path}: this measurement is ignored: {_printable(error)}")
        return None


def _text(path: pathlib.Path) -> str | None:
    """What is in a file; ``None`` if there is none. One that is not regular might have no end."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise ValueError("it is no regular file")
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None


def _printable(error: Exception) -> str:
    """An error, which may quote what is in a file, in a line that does nothing to a terminal."""
    text = f"{type(error).__name__}: {error}"[:200]
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def write(key: str, held: Mapping[str, Any]) -> pathlib.Path | None:
    """Keeps it for this process and later ones.

    Returns:
      Where it is; ``None`` if nothing is kept, with a warning where that is since it cannot be.
    """
    path = _path(key)
    if path is None:
        return None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(json.dumps({"schema": SCHEMA, "key": key, **held}, indent=1).encode())
    except OSError as error:
        _warn(f"a measurement is not kept: {error}; {VARIABLE} names another folder, or is 'off'")
        return None
    _Generation.count += 1
    return path


def remove(key: str) -> None:
    """Removes what is kept for a key, if anything is; a warning where that cannot be."""
    path = _path(key)
    if path is None:
        return
    try:
        path.unlink(missing_ok=True)
    except NotADirectoryError:
        return
    except OSError as error:
        _warn(f"an old measurement stays: {error}; {VARIABLE} names another folder, or is 'off'")
        return
    _Generation.count += 1


_PACKAGE = str(pathlib.Path(__file__).parent)


def _warn(text: str) -> None:
    """Warns at the line that called the package; Python shows a text once for each line."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, stacklevel=level)


def _path(key: str) -> pathlib.Path | None:
    where = folder()
    name = hashlib.sha256(key.encode()).hexdigest()[:32]
    return None if where is None else where / f"{name}.json"
