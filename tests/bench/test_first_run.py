"""`bench gpu --first-run` without a GPU: its stages end in time, and it goes on where it was."""

import json
import os
import sys
import time

import pytest

from bench import __main__ as command
from bench.gpu import contenders, first_run, grid, point, suite


def _stage(program, *, share=1.0, name="tests"):
    return first_run.Stage(name, (sys.executable, "-c", program), share)


SAYS = "print('right')"
FAILS = "raise SystemExit(3)"
# It starts another process, says its number, and neither ends.
HANGS = """
import subprocess, sys, time
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]).pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("stage", "status", "code"),
    [
        (_stage(SAYS), first_run.PASSED, 0),
        (_stage(FAILS), first_run.FAILED, 3),
        (first_run.Stage("tests", ("no-such-program",), 1.0), first_run.MISSING, None),
    ],
)
def test_how_a_stage_ends_is_told(stage, status, code, tmp_path):
    entry = first_run.run(stage, 30, tmp_path / "told.txt")
    assert (entry["status"], entry["code"]) == (status, code)
    assert (tmp_path / "told.txt").exists()


def test_a_stage_that_hangs_is_ended_with_all_that_it_started(tmp_path):
    started, told = time.monotonic(), tmp_path / "told.txt"
    entry = first_run.run(_stage(HANGS), 2, told)
    assert entry["status"] == first_run.STOPPED and time.monotonic() - started < 20
    child = int(told.read_text())
    with pytest.raises(ProcessLookupError):
        _gone(child)


def _gone(pid, seconds=5):
    """Raises once no such process runs; an ended one may wait to be looked at."""
    for _ in range(10 * seconds):
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as file:
            if file.read().rpartition(")")[2].split()[0] == "Z":
                raise ProcessLookupError
        time.sleep(0.1)


def test_it_goes_on_where_it_was(tmp_path, monkeypatch, capsys):
    kept = tmp_path / "kept"
    stages = [_stage(SAYS), _stage(f"open({str(kept)!r}).close()", name="racecheck")]
    monkeypatch.setattr(first_run, "stages", lambda options: stages)
    call = ["gpu", "--first-run", "--minutes", "1", "--out", str(tmp_path)]
    with pytest.raises(RuntimeError, match="not all is right: racecheck"):
        command.main(call)
    result = json.loads((tmp_path / "gpu_first_run.json").read_text())["stages"]
    assert [entry["status"] for entry in result.values()] == [first_run.PASSED, first_run.FAILED]
    # The time that the first left is the second's.
    assert result["tests"]["limit"] == 30 and result["racecheck"]["limit"] > 40
    assert "FileNotFoundError" in capsys.readouterr().out
    kept.touch()
    command.main(call)
    said = capsys.readouterr().out
    assert "tests: passed before" in said and "racecheck: passed after" in said


def test_the_grid_measures_what_its_file_lacks(tmp_path, monkeypatch):
    asked = []

    def measure(shape, *_):
        asked.append(shape)
        if len(asked) == 2:
            raise MemoryError
        fields = {name: getattr(shape, name) for name in shape.__dataclass_fields__}
        return {**fields, "unroll": 4, "contenders": {}, "floor": {"seconds": 1.0}}

    monkeypatch.setattr(point, "measure", measure)
    monkeypatch.setattr(suite.plots, "draw", lambda *_: [])
    monkeypatch.setattr(suite.report, "text", lambda _: "")
    call = ["gpu", "--rehearse", "--resume", "--out", str(tmp_path)]
    with pytest.raises(RuntimeError, match="MemoryError"):
        command.main(call)
    command.main(call)
    assert asked == [*grid.REHEARSAL, grid.REHEARSAL[1]]
    result = json.loads((tmp_path / "gpu.json").read_text())
    assert len(result["points"]) == len(result["runs"]) == 2 and not result["not_run"]
    result["runs"][-1]["device"]["kind"] = "another"
    (tmp_path / "gpu.json").write_text(json.dumps(result))
    command.main(call)
    assert asked[3:] == [*grid.REHEARSAL]


def test_every_row_of_the_table_is_full():
    assert set(grid.CHEAP_FIRST) == set(grid.FULL)
    assert grid.CHEAP_FIRST[: len(grid.TABLED)] == grid.TABLED
    wanted = set(point.NAMES) - set(contenders.PURE)
    assert set(first_run._SIDES.split()) == wanted
    for shape in grid.TABLED:
        assert all(point._is_timed(name, shape) for name in wanted)
    assert not any(point._is_timed(name, grid.TABLED[0]) for name in contenders.PURE)
