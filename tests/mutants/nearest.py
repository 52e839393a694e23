"""A plugin of pytest: tests next to a changed file of the package run first, others by distance.

It is what ends the run for a mutant soon: most are found in the room that they are in. Of a room,
tests come first that are named after what the file defines, then those of files that name it.
"""

from __future__ import annotations

import ast
import pathlib
import re

import pytest

from tests import rooms
from tests.changed import ROOMS, ROOT

FAR = 99


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--nearest", metavar="FILE", help="of the package, by its path there")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    changed = rooms.PACKAGE / config.getoption("--nearest")
    away, names = distances(rooms.room_of(changed)), names_of(changed)
    meant = {path: names & set(re.findall(r"\w+", path.read_text())) for path in _paths(items)}

    def order(item: pytest.Item) -> tuple[int, bool, bool]:
        if item.path.is_relative_to(rooms.PACKAGE):
            of = {rooms.room_of(item.path)}
        else:
            name = item.path.relative_to(ROOT / "tests").parts[0].removesuffix(".py")
            of = ROOMS.get(name, {name})
        distance = min((away.get(room, FAR) for room in of), default=FAR)
        named = any(_letters(name) in _letters(item.nodeid) for name in (changed.stem, *names))
        return distance, not named, not meant[item.path]

    items.sort(key=order)


def names_of(path: pathlib.Path) -> set[str]:
    """What a file of the package defines for others."""
    found = (getattr(node, "name", "_") for node in ast.parse(path.read_text()).body)
    return {name for name in found if not name.startswith("_")}


def _letters(name: str) -> str:
    return name.replace("_", "").lower()


def _paths(items: list[pytest.Item]) -> set[pathlib.Path]:
    return {item.path for item in items}


def distances(room: str) -> dict[str, int]:
    """How many imports a room is away from one that it imports, by way of others too."""
    found, new = {room: 0}, {room}
    while new:
        new = {above for r in new for above in rooms.importers().get(r, ())} - found.keys()
        found |= dict.fromkeys(new, max(found.values()) + 1)
    return found
