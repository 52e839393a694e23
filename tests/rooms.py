"""Which rooms of the package import which: read from their imports.

A room is a folder of the package, or a file at its top.
"""

from __future__ import annotations

import ast
import functools
import pathlib
from collections.abc import Iterator

import parscan_bp

PACKAGE = pathlib.Path(parscan_bp.__file__).parent


def room_of(path: pathlib.Path) -> str:
    """The room of a file of the package."""
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imports(path: pathlib.Path) -> Iterator[tuple[ast.ImportFrom, str]]:
    """The imports of a file from rooms, and these."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("parscan_bp."):
            yield node, (node.module or "").split(".")[1]
        elif isinstance(node, ast.ImportFrom) and node.module == "parscan_bp":
            yield from ((node, alias.name) for alias in node.names)


@functools.cache
def importers() -> dict[str, set[str]]:
    """For each room, those that import it, the room at the top aside."""
    found: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        here = room_of(path)
        found.setdefault(here, set())
        if here == "__init__":
            continue
        for _, there in imports(path):
            found.setdefault(there, set()).add(here)
    return found


def at_and_above(rooms: set[str]) -> set[str]:
    """The rooms, and all that import them, by way of others too."""
    by, found, new = importers(), set(rooms), set(rooms)
    while new:
        new = {above for room in new for above in by.get(room, ())} - found
        found |= new
    return found
