"""The measurements of feed-forward networks, at sizes where nothing is measured but all runs."""

import json

import numpy as np
import pytest

from bench import __main__ as command
from bench import figures, lenet_report, vgg11_training


def _run(name, folder, *options):
    command.main([name, *options, "--out", str(folder)])
    return json.loads((folder / f"{name}.json").read_text())


def _figures(folder):
    drawn = sorted(folder.glob("*.png"))
    assert all(1000 < p.stat().st_size < figures.LARGEST_PNG for p in drawn)
    return [p.stem.rpartition("_")[2] for p in drawn]


def test_lenet_trains_both_sides_alike(tmp_path, capsys):
    sizes = "--batch 8 --steps 4 --train-images 32 --test-images 16 --every 2".split()
    result = _run("lenet", tmp_path, *sizes)
    sides = result["training"]
    assert set(sides) == {lenet_report.BASELINE, lenet_report.OURS, lenet_report.CONTROL}
    plain, ours = sides[lenet_report.BASELINE], sides[lenet_report.OURS]
    assert len(set(plain["losses"])) == 4, "parameters do not move"
    assert list(plain["test"]) == ["0", "2", "4"]
    np.testing.assert_allclose(plain["losses"], ours["losses"], rtol=1e-4)
    found = result["differences"][lenet_report.OURS]
    apart = np.abs(np.subtract(plain["losses"], ours["losses"]))
    assert found["training_loss"] == apart.max() and found["test_loss"] < 1e-4
    assert 0 < result["differences"][lenet_report.CONTROL]["training_loss"] < 1e-4
    errors = result["gradient_errors"]
    assert max(errors["solvers"].values()) <= errors["allowed"]
    assert set(errors["solvers"]) == {"auto", "blelloch"}
    assert _figures(tmp_path) == ["figure6"]
    assert "largest difference from jax.grad" in capsys.readouterr().out


def test_vgg11_counts_and_times_every_scan(tmp_path, capsys):
    checkpoint = ["--checkpoint", str(tmp_path / "vgg11.npz")]
    result = _run("vgg11", tmp_path, "--quick", *checkpoint)
    assert result["training"]["kept"] == round(0.2 * result["training"]["weights"])
    counts = result["counts"]["conventions"]
    assert list(counts) == ["full weights", "static", "selection", "dynamic"]
    totals = [sum(own["scans"]["0"]["steps"]["flops"]) for own in counts.values()]
    assert totals == sorted(totals, reverse=True) and len(set(totals)) == 4
    assert counts["full weights"]["scans"]["0"]["above_bp"] == 0
    for zeros, scans in result["steps"]["seconds"].items():
        for levels, seconds in scans.items():
            assert len(seconds) == len(counts[zeros]["scans"][levels]["steps"]["kind"])
            assert all(s is None or s > 0 for s in seconds)
    for own in result["chains"].values():
        for measured in own.values():
            assert {"planned", "linear"} <= set(measured["errors"])
            assert len(measured["plan_steps"]) > 5
    memory = result["memory"]
    assert memory["planned_bytes"] <= memory["limit"]
    assert _figures(tmp_path) == ["figure10", "figure7", "figure8", "figure9"]
    assert "steps > BP's largest" in capsys.readouterr().out

    again = _run("vgg11", tmp_path, "--quick", *checkpoint, "--parts", "counts")
    assert again["chains"] == result["chains"] and len(again["runs"]) == 2
    assert again["counts"] == result["counts"]


def test_a_checkpoint_of_another_network_is_refused(tmp_path):
    path = tmp_path / "vgg11.npz"
    with pytest.raises(FileNotFoundError, match="run the part 'training' first"):
        vgg11_training.restore(path, [np.zeros(2)])
    vgg11_training.save(path, [{"kernel": np.ones((2, 3))}, None])
    like = [{"kernel": np.zeros((2, 3))}, None]
    assert vgg11_training.restore(path, like)[0]["kernel"].tolist() == np.ones((2, 3)).tolist()
    with pytest.raises(ValueError, match="holds another network"):
        vgg11_training.restore(path, [{"kernel": np.zeros((3, 2))}, None])
