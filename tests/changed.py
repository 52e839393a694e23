"""``pytest --changed [REV]``: the tests of what differs from a revision, and of all above it.

A room of the package is tested by the folder of its name, what is in another place says so in
`ROOMS`, and by the files that import from it. Files that are not of the package, such as the test's
own helpers, select all tests of their folder; those at the top of the tests, and the project's
settings, select everything.
"""

from __future__ import annotations

import pathlib
import subprocess

import pytest

from tests import rooms

ROOT = pathlib.Path(__file__).parents[1]
ROOMS = {
    "solvers": {"solvers", "solve", "system", "report", "deep_rnn"},
    "flax": {"adapters", "nnx", "linen"},
    "modes": {"scan", "chain", "forward", "solvers", "layers", "adapters", "linen", "conformance"},
    "words": {"scan", "chain", "adapters", "nnx"},
    "conformance": {"scan", "originals", "conformance"},
    "notebooks": {"scan", "chain", "pipeline", "forward", "adapters", "plots"},
    "bench": {"scan", "chain", "pipeline", "parallel", "planner", "forward"},
    "papers": {"solvers", "scan", "deep_rnn", "cells", "pipeline", "parallel"},
    "axes": {"operators", "solvers", "linearise"},
    "extrema": {"scan", "linearise", "jaxprs"},
    "grids": {"parallel"},
    "test_fuzz": {"pipeline", "parallel"},
    "test_trees": {"trees"},
    "test_pruning": {"pruning"},
    "test_export": {"scan", "chain"},
    "test_explicit_sharding": {"scan", "chain"},
    "test_installation": {"installation"},
    "test_install": set(),
    "test_compiling": set(),
    "test_optimisation": set(),
    "test_pages": {
        "scan",
        "chain",
        "pipeline",
        "forward",
        "adapters",
        "tuning",
        "explain",
        "diagnose",
    },
}
"""What is tested by folders and files that do not have the name of a room."""
ALWAYS = ("test_house", "test_changed", "mutants")
ELSEWHERE = ("family",)
"""Folders of the tests that others use."""


def add_option(parser: pytest.Parser) -> None:
    """To the command line."""
    parser.addoption(
        "--changed",
        nargs="?",
        const="HEAD",
        metavar="REV",
        help="run the tests of what differs from REV (HEAD), and of all that imports it",
    )


def changed_files(revision: str) -> list[str]:
    """The files that differ from a revision, and those that git does not know, but ignores."""
    commands = (
        ["git", "diff", "--name-only", revision],
        ["git", "ls-files", "--others", "--exclude-standard"],
    )
    return [
        line
        for command in commands
        for line in subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.splitlines()
    ]


class Selection:
    """What is to be run for changed files.

    Args:
      files: relative to the project.
    """

    def __init__(self, files: list[str]):
        paths = [pathlib.PurePosixPath(f) for f in files]
        ours = {rooms.room_of(ROOT / p) for p in paths if p.parts[0] == "parscan_bp"}
        tests = {p.parts[1].removesuffix(".py") for p in paths if p.parts[0] == "tests"}
        self._changed, self._rooms = ours, rooms.at_and_above(ours)
        self._tests = tests
        helpers = {t for t in tests if t in ELSEWHERE or (ROOT / f"tests/{t}.py").exists()}
        helpers = {t for t in helpers if not t.startswith("test_")}
        settings = {"pyproject.toml", ".ci/run"} & set(files)
        self._all = bool(helpers or settings or "__init__" in ours)
        self._pages = any(p.suffix == ".md" for p in paths)
        self._bench = any(p.parts[0] == "bench" for p in paths)

    def wants(self, path: pathlib.Path) -> bool:
        """Whether a test file, or one of the package with its examples, is run."""
        if self._all:
            return True
        if path.is_relative_to(rooms.PACKAGE):
            return rooms.room_of(path) in self._rooms
        name = path.relative_to(ROOT / "tests").parts[0].removesuffix(".py")
        if name in ALWAYS or name in self._tests or (self._pages and name == "test_pages"):
            return True
        if name == "bench" and self._bench:
            return True
        if ROOMS.get(name, {name}) & self._rooms:
            return True
        return any(room in self._changed for _, room in rooms.imports(path))


def pytest_configure(config: pytest.Config) -> None:
    revision = config.getoption("--changed")
    if revision is not None:
        config.stash[SELECTION] = Selection(changed_files(revision))


SELECTION = pytest.StashKey[Selection]()


def pytest_ignore_collect(collection_path: pathlib.Path, config: pytest.Config) -> bool | None:
    """Files that are not wanted are not imported."""
    selection = config.stash.get(SELECTION, None)
    if selection is None or collection_path.suffix != ".py":
        return None
    return None if selection.wants(collection_path) else True
