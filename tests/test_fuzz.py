"""A few drawn cases; `python -m tests.fuzz_pipelines` and `.fuzz_grids` try hundreds."""

import pytest

from tests.fuzz import run

PROGRAM = """
from tests.fuzz import tried
from tests.{what} import attempt

for index in {indices}:
    record = tried(attempt, 0, index)
    assert record["text"] and not record["message"], record
"""


def test_pipelines(run_on_devices):
    run_on_devices(PROGRAM.format(what="fuzz_pipelines", indices=range(2)), 1, x64=True)


def test_grids(run_on_devices):
    run_on_devices(PROGRAM.format(what="fuzz_grids", indices=range(3)), 4, x64=True)


@pytest.mark.slow
def test_a_run_goes_on_where_it_was_left(tmp_path, capfd):
    state = tmp_path / "state.jsonl"
    assert run("tests.fuzz_pipelines", 0, 1, state) == 0
    assert run("tests.fuzz_pipelines", 0, 2, state) == 0
    told = capfd.readouterr().out
    assert "0 of 1 cases done before" in told and "1 of 2 cases done before" in told
    assert [line.count('"message": ""') for line in state.read_text().splitlines()] == [1, 1]
    with pytest.raises(SystemExit, match="another seed than 1"):
        run("tests.fuzz_pipelines", 1, 2, state)
