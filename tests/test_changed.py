"""``--changed`` runs the tests of what changed and of all that imports it, and no others."""

import subprocess
import sys

import pytest

from tests import rooms
from tests.changed import ALWAYS, ELSEWHERE, ROOMS, ROOT, Selection

ALWAYS_RUN = {p.name for p in (ROOT / "tests").iterdir() if p.stem in ALWAYS}


def wanted(*files):
    """The test files, and folders, that are run when these have changed."""
    selection = Selection(list(files))
    paths = (ROOT / "tests").rglob("test_*.py")
    return {p.relative_to(ROOT / "tests").parts[0] for p in paths if selection.wants(p)}


def test_a_room_selects_itself_and_what_imports_it():
    few = wanted("parscan_bp/parallel/grids/halo.py")
    assert {"grids", "parallel"} | ALWAYS_RUN <= few
    assert not {"scan", "chain", "forward", "structure", "solvers"} & few
    many = wanted("parscan_bp/jaxprs/read.py")
    assert {"jaxprs", "scan", "chain", "forward", "flax", "pipeline", "solvers"} <= many


@pytest.mark.parametrize("room", ["scan", "pipeline", "operators"])
def test_what_imports_a_room_is_selected(room):
    """Read from the imports themselves: no list has to be kept."""
    above = rooms.at_and_above({room})
    for importer in rooms.importers()[room]:
        assert rooms.at_and_above({importer}) <= above


def test_rooms_without_a_folder_are_tested_where_it_is_said():
    """And by each file that imports from what changed, whatever folder it is in."""
    for file in ("deep_rnn.py", "solve.py", "system.py", "report.py"):
        assert "solvers" in wanted(f"parscan_bp/{file}"), file
    folders = {path.name for path in (ROOT / "tests").iterdir()}
    tested = set().union(*ROOMS.values(), folders)
    for room in set(rooms.importers()) - tested - {"__init__"}:
        assert rooms.at_and_above({room}) & folders, room
    selection = Selection(["parscan_bp/scan/api.py"])
    assert selection.wants(ROOT / "tests/forward/test_auto.py")
    assert not selection.wants(ROOT / "tests/forward/test_chunks.py")


def test_tests_and_pages_select_themselves_and_settings_everything():
    assert wanted("tests/scan/test_sizes.py") == {"scan"} | ALWAYS_RUN
    assert wanted("docs/use.md") == {"test_pages.py"} | ALWAYS_RUN
    everything = wanted("pyproject.toml")
    assert everything == wanted("tests/family/cases.py") == wanted("parscan_bp/__init__.py")
    assert {"scan", "words", "bench"} <= everything


def test_every_folder_of_tests_is_of_a_room_or_says_of_which():
    folders = {p.name for p in (ROOT / "tests").iterdir() if any(p.glob("test_*.py"))}
    files = {p.stem for p in (ROOT / "tests").glob("test_*.py")}
    known = set(rooms.importers()) | set(ROOMS) | set(ALWAYS) | set(ELSEWHERE)
    assert not sorted((folders | files) - known)


def test_it_is_an_option_of_pytest():
    command = [sys.executable, "-m", "pytest", "--changed", "HEAD", "--collect-only", "-q"]
    done = subprocess.run(
        [*command, "tests/test_house.py"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-500:]
    assert "test_imports_go_down_only" in done.stdout
