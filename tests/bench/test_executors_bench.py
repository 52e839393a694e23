"""The bench of executors, at sizes where times mean nothing but all runs."""

import json

import numpy as np
import pytest

from bench import __main__ as command
from bench.paper.executors import sleeping
from parscan_bp import pipeline


def _run(tmp_path, *options):
    command.main(["executors", "--quick", "--out", str(tmp_path), *options])
    return json.loads((tmp_path / "executors.json").read_text())["points"]


def test_sleeping_blocks_are_at_least_as_slow_as_the_model(tmp_path, capsys):
    points = _run(tmp_path, "--only", "sleeping DSP(1,1,0", "sleeping FR")
    assert set(points) == {"sleeping DSP(1,1,0;4,2,0)", "sleeping FR"}
    for entry in points.values():
        assert [run["slow_down"] for run in entry["runs"]] == [0.0, 1.5]
        assert all(run["seconds"] > 0 and run["modelled"] > 0 for run in entry["runs"])
    assert "(359.2)" in capsys.readouterr().out


def test_a_time_a_batch_is_that_of_the_model_from_the_models_spans():
    for schedule in sleeping.SCHEDULES.values():
        ahead = schedule.on_the_way(3)
        table = schedule.table(3, 12 + 2 * ahead)
        spans = pipeline.timeline(table)
        found = sleeping.seconds_per_batch(spans, ahead, table.batches)
        assert found == pytest.approx(pipeline.time_per_batch(schedule, 3, batches=12))


@pytest.mark.slow
def test_every_part_runs(tmp_path, capsys):
    points = _run(tmp_path)
    assert {entry["part"] for entry in points.values()} == {"sleeping", "working", "resnet"}
    for run in points["resnet"]["runs"]:
        assert np.isfinite(run["losses"]).all() and sum(run["split"]) == 11
    shown = capsys.readouterr().out
    assert "nnx ResNet by DSP(1,1,0;4,2,0)" in shown and "working blocks, K=2" in shown
