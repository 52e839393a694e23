"""The bench over processes, at a size where nothing is measured but everything runs."""

import json

import pytest

from bench import __main__ as command
from bench.grids.mesh.bench import MODELLED, modelled, text


@pytest.mark.slow
def test_mesh_runs_processes(tmp_path, capsys):
    command.main(["mesh", "--quick", "--processes", "1", "2", "--out", str(tmp_path)])
    result = json.loads((tmp_path / "mesh.json").read_text())
    alone, both = sorted(result["points"], key=lambda entry: entry["processes"])
    assert (alone["processes"], both["processes"]) == (1, 2)
    found = both["methods"]["ppermute"]
    assert found["error"] < 1e-4 and len(found["seconds"]) == 2
    # Forward, what enters each, backward: one each for two devices.
    assert found["collectives"]["collective-permute"] == [3, 3 * 2 * 3 * 4]
    assert found["bytes"] > 0
    shown = capsys.readouterr().out
    assert "P=64 (modelled)" in shown and "P=2 " in shown


def test_more_devices_are_modelled_from_one():
    one = {"median": 1.0, "bytes": 10, "error": 0.0, "collectives": {}}
    settings = {"length": 100, "batch": 2, "hidden": 3}
    methods = {"chain": one, "turns": {**one, "median": 2.0}, "corrections": one}
    point = {"name": "P=1", "processes": 1, "methods": methods}
    result = {"settings": settings, "points": [point]}
    rows = modelled(result)
    assert [row[0] for row in rows] == [f"P={p} (modelled)" for p in MODELLED for _ in methods]
    # T steps forward, 2 T/P and log2 P more backward, of 1 / 2T seconds each; and what is sent.
    assert rows[0][2:4] == ["590.06 ms", "0.59"]
    # 2 T steps of twice the time, as in one process: what is beside them is sent.
    assert rows[1][2:4] == ["2.00 s", "2.00"]
    # T steps, and 3 T/P in one round.
    assert rows[2][2:4] == ["605.04 ms", "0.61"]
    assert modelled({**result, "points": []}) == [] and "1.00 s" in text(result)
