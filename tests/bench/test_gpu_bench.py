"""The GPU suite without a GPU: its rehearsal, and its arithmetic on numbers made by hand."""

import dataclasses
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bench import __main__ as command
from bench.gpu import contenders, cudnn, floor, grid, plots, point, report, summary
from bench.shared import candidates, figures, programs, record, timing

OFF_CPU = ("pallas", "fused", "kernels", "cudnn", "cudnn_graph")
SOLVE = "solve, kernels over floor"
TINY = grid.Shape(grid.RNN, 1, 3, 2, 5)


def _rehearse(tmp_path, *options):
    command.main(["gpu", "--rehearse", *options, "--out", str(tmp_path)])
    return json.loads((tmp_path / "gpu.json").read_text())


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_fails():
    with pytest.raises(SystemExit, match="needs a CUDA GPU; JAX finds cpu only") as stopped:
        command.main(["gpu"])
    assert stopped.value.code != 0


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="there is a GPU")
def test_rehearsal_measures_reports_and_draws(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    names = ["lax.scan", "sweep", *OFF_CPU]
    result = _rehearse(tmp_path, "--contenders", *names)
    assert [summary.shape_of(p) for p in result["points"]] == list(grid.REHEARSAL)
    assert result["not_run"] == [] and "torch" in result["torch"]["absent"]
    for entry in result["points"]:
        sides = entry["contenders"]
        assert set(sides) == set(names)
        plain, ours = sides["lax.scan"], sides["sweep"]
        assert set(plain["times"]) == {"forward", "backward", "value_and_grad", "step"}
        assert plain["error"] == 0
        assert set(ours["times"]) == {"forward", "backward", "value_and_grad"}
        assert ours["error"] <= entry["tolerance"]
        assert {p["pallas_kernels"] for p in ours["programs"].values()} == {0}
        for name in OFF_CPU:
            assert sides[name]["status"] == "refused" and not sides[name]["times"]
        assert all("Pallas" in r for r in sides["pallas"]["reasons"].values())
        assert set(sides["cudnn"]["reasons"]) == {"forward", "backward", "value_and_grad", "step"}
        assert entry["floor"]["seconds"] > 15e-6
    shown = capsys.readouterr().out
    assert "refused at 2 points: cudnn, step: NotImplementedError: PyTorch cannot" in shown
    assert "/" not in json.dumps(result["points"])
    drawn = sorted(tmp_path.glob("*.png"))
    assert [p.name for p in drawn] == ["gpu_figure8.png", "gpu_floor.png"]


def test_what_the_budget_leaves_out_is_named(tmp_path, capsys):
    result = _rehearse(tmp_path, "--minutes", "0")
    assert result["points"] == [] and result["not_run"] == list(map(str, grid.REHEARSAL))
    assert all(entry.get("met") is None for entry in result["summary"])
    assert f"no time left: {grid.REHEARSAL[0]}" in capsys.readouterr().out


def test_wrong_gradients_get_no_time_and_fail_the_run(tmp_path, monkeypatch, capsys):
    def wrong(unroll):
        return lambda step, init, xs: jax.lax.scan(lambda h, x: step(0.99 * h, x), init, xs)

    _, passes = contenders.SCANS["sweep"]
    monkeypatch.setitem(contenders.SCANS, "sweep", (wrong, passes))
    monkeypatch.setattr(grid, "REHEARSAL", (TINY,))
    with pytest.raises(RuntimeError, match="wrong at 1 points: sweep, value_and_grad"):
        _rehearse(tmp_path, "--contenders", "sweep")
    (entry,) = json.loads((tmp_path / "gpu.json").read_text())["points"]
    side = entry["contenders"]["sweep"]
    assert side["status"] == "wrong" and side["times"] == {}
    assert "differs from its reference" in side["reasons"]["value_and_grad"]
    assert "wrong at 1 points: sweep, value_and_grad" in capsys.readouterr().out


def test_a_point_that_fails_does_not_end_the_run(tmp_path, monkeypatch):
    def broken(shape, *_):
        raise MemoryError(f"too much for {shape}")

    monkeypatch.setattr(point, "measure", broken)
    with pytest.raises(RuntimeError, match="failed at gru"):
        _rehearse(tmp_path)
    result = json.loads((tmp_path / "gpu.json").read_text())
    names = [str(shape) for shape in grid.REHEARSAL]
    assert result["failed"] == {name: f"MemoryError: too much for {name}" for name in names}
    assert result["not_run"] == names


@pytest.mark.parametrize(
    ("length", "weighted", "flops", "moved", "least"),
    [
        (1000, False, 0.282e9, 55.0e6, 27.8e-6),
        (30000, False, 8.45e9, 1651e6, 0.40e-3),
        (1000, True, 0.282e9, 6.4e6, 19.2e-6),
        (30000, True, 8.45e9, 192e6, 0.141e-3),
    ],
)
def test_the_floor_formula(length, weighted, flops, moved, least):
    system = floor.System(length, batch=16, size=20, weighted=weighted)
    peaks = floor.Peaks(bytes_per_second=4.3e12, flops_per_second=67e12)
    assert floor.flops(system) == pytest.approx(flops, rel=2e-3)
    assert floor.moved_bytes(system) == pytest.approx(moved, rel=5e-3)
    assert floor.seconds(system, peaks) == pytest.approx(least, rel=1e-2)


def test_phases_add_up_to_the_formula_but_for_the_chunk_maps():
    system = floor.System(length=4096, batch=4, size=16, weighted=False)
    reduce, middle, sweep = floor.phases(system, [512])
    assert [p.name for p in (reduce, middle, sweep)] == ["reduce", "sweep", "sweep"]
    assert reduce.flops + sweep.flops == pytest.approx(floor.flops(system), rel=5e-3)
    assert reduce.bytes + sweep.bytes == pytest.approx(floor.moved_bytes(system), rel=5e-3)
    assert middle.flops == 8 * 4 * 2 * 16**2
    (alone,) = floor.phases(system, [])
    assert alone.flops == sweep.flops
    levels = floor.phases(floor.System(8, 1, 4, True), [2, 2, 2])
    assert [p.name for p in levels] == ["reduce"] * 2 + ["sweep"] * 3


def test_peaks_are_rates_of_this_device():
    peaks = floor.measured_peaks(numbers=2**12, order=16, calls=1)
    assert 0 < peaks.bytes_per_second < 1e14 and 0 < peaks.flops_per_second < 1e16


def _times(**medians):
    return {q: {"median": s, "iqr": 0.0, "seconds": [s, s, s]} for q, s in medians.items()}


def _entry(shape, least=1.0, **sides):
    """A point of a result file; `sides` are times by contender."""
    of = {
        name: {"status": "measured", "reasons": {}, "times": times} for name, times in sides.items()
    }
    fields = {name: getattr(shape, name) for name in shape.__dataclass_fields__}
    return {**fields, "floor": {"seconds": least}, "contenders": of}


def _ratio(entries, name):
    (found,) = (entry for entry in entries if entry["ratio"] == name)
    return found


def test_summary_takes_extremes_and_means_over_points():
    first, second = grid.MAIN, grid.FULL[1]
    entries = summary.summary(
        [
            _entry(first, pallas=_times(backward=1.0), cudnn=_times(backward=4.0)),
            _entry(second, pallas=_times(backward=2.0), cudnn=_times(backward=242.0)),
        ],
        not_run=[],
    )
    found = _ratio(entries, "backward, pallas over cudnn")
    assert (found["minimum"], found["geometric_mean"], found["maximum"]) == pytest.approx(
        (4, 22, 121)
    )
    assert found["best"] == str(second) and found["met"] is True and found["missing"] == []
    assert [p["low"] for p in found["points"]] == pytest.approx([4, 121])
    assert _ratio(entries, f"step, best fused over cudnn, {grid.MAIN}")["met"] is None


def test_summary_races_against_the_fastest_pure_solver():
    sides = {
        "pallas": _times(backward=2.0),
        "sweep": _times(backward=9.0),
        "chunked": _times(backward=3.0),
    }
    entries = summary.summary([_entry(grid.MAIN, **sides)], not_run=[])
    assert _ratio(entries, "backward, pallas over best pure JAX")["minimum"] == 1.5


def test_summary_takes_the_faster_of_the_fused():
    sides = {
        "fused": _times(step=2.0),
        "fused_sequential": _times(step=1.0),
        "cudnn": _times(step=3.0),
    }
    found = _ratio(summary.summary([_entry(grid.MAIN, **sides)], []), "step, best fused over cudnn")
    assert found["minimum"] == 3.0 and found["met"] is True


def test_summary_claims_nothing_that_a_missing_point_could_change():
    kernels = _entry(grid.MAIN, least=1.0, kernels=_times(solve=2.0))
    assert _ratio(summary.summary([kernels], []), SOLVE)["met"] is True
    left = summary.summary([kernels], [grid.FULL[1]])
    assert _ratio(left, SOLVE)["met"] is None
    assert _ratio(left, SOLVE)["missing"] == [str(grid.FULL[1])]
    slow = _entry(grid.MAIN, least=1.0, kernels=_times(solve=3.0))
    assert _ratio(summary.summary([slow], [grid.FULL[1]]), SOLVE)["met"] is False
    times = {"pallas": _times(backward=1.0), "cudnn": _times(backward=2.0)}
    for missing, met in (([], False), ([grid.FULL[1]], None)):
        found = summary.summary([_entry(grid.MAIN, **times)], missing)
        assert _ratio(found, "backward, pallas over cudnn")["met"] is met


def test_a_backward_pass_lost_in_noise_has_no_ratio():
    lost = _entry(grid.MAIN, pallas=_times(backward=-1.0), cudnn=_times(backward=2.0))
    entries = summary.summary([lost], not_run=[])
    assert str(grid.MAIN) in entries[0]["missing"] and not entries[0]["points"]


def test_the_whole_grid_is_drawn_and_tabulated(tmp_path):
    def sides(shape):
        both = _times(forward=1e-3, backward=2e-3 * shape.length, step=4e-3, value_and_grad=1.0)
        return {name: both for name in point.NAMES if name != "kernels"} | {
            "kernels": _times(solve=1e-4)
        }

    points = [_entry(shape, **sides(shape)) for shape in grid.FULL]
    result = {
        "runs": [{"device": {"kind": "none"}}],
        "settings": {"names": list(point.NAMES)},
        "peaks": {"bytes_per_second": 1.0, "flops_per_second": 1.0},
        "points": points,
        "not_run": [],
        "failed": {},
        "summary": summary.summary(points, []),
    }
    drawn = plots.draw(result, tmp_path / "gpu.json")
    assert all(1000 < p.stat().st_size < figures.LARGEST_PNG for p in drawn)
    assert f"{len(points)} of {len(points)}" in report.text(result)


def test_the_grid_is_the_papers():
    assert len(set(grid.FULL)) == len(grid.FULL)
    rnn = [s for s in grid.FULL if s.cell == grid.RNN and s.dtype == "float32"]
    assert set(grid.ALL_SIDES) <= set(grid.FULL)
    lengths = {s.length for s in rnn if s.batch == 16}
    assert lengths == {10, 30, 100, 300, 1000, 3000, 10000, 30000}
    assert {s.batch for s in rnn if s.length == 1000} == {2, 4, 8, 16, 32, 64, 128, 256}
    sets = {(259, 38), (517, 24), (1034, 12)}
    gru = {
        (s.length, s.inputs, s.batch) for s in grid.FULL if s.cell == grid.GRU and s.hidden == 20
    }
    assert gru == {(*one, batch) for one in sets for batch in (16, 32, 64)}


def test_wrong_cotangents_of_steps_that_the_loss_forgets_are_found(tmp_path, monkeypatch):
    """A network may forget its first steps, and what a scan makes of these shows nowhere."""

    def wrong(unroll):
        def scan(step, init, xs):
            carry, ys = jax.lax.scan(step, init, xs)
            return carry, jnp.concatenate([jax.lax.stop_gradient(ys[:2]), ys[2:]])

        return scan

    _, passes = contenders.SCANS["sweep"]
    monkeypatch.setitem(contenders.SCANS, "sweep", (wrong, (*passes, contenders.DENSE)))
    monkeypatch.setattr(grid, "REHEARSAL", (TINY,))
    with pytest.raises(RuntimeError, match=r"sweep, of every step.* differs from its reference"):
        _rehearse(tmp_path, "--contenders", "sweep")


@pytest.mark.parametrize("cell", [grid.RNN, grid.LSTM])
def test_many_steps_in_a_program_are_as_many_steps(cell):
    work = grid.make(dataclasses.replace(TINY, cell=cell), seed=0)
    one, many = (
        contenders.scan_lane(name, work, contenders.SCANS["lax.scan"][0], 1)
        for name in (contenders.STEP, contenders.STEPS)
    )
    losses = many()
    assert losses.shape == (contenders.IN_ONE,) and np.isclose(losses[0], one()[0])
    # It goes on from where it was.
    assert many()[0] < losses[0]


def test_short_numbers_are_drawn_and_compared():
    short = grid.make(dataclasses.replace(TINY, dtype="bfloat16"), seed=0)
    assert {a.dtype.name for a in jax.tree.leaves(short.point)} == {"bfloat16"}
    lane = contenders.scan_lane(contenders.DENSE, short, contenders.SCANS["lax.scan"][0], 1)
    wanted = point.Wanted.by(lane, short, dataclasses.replace(TINY, dtype="bfloat16"))
    assert wanted.check(lane(), "itself") == 0
    with pytest.raises(FloatingPointError, match="differs from its reference"):
        wanted.check(jax.tree.map(lambda a: 1.2 * a, lane()), "another")


def test_reasons_hold_no_folders():
    reason = record.reason_of(OSError("no file /home/someone/lib/it.so\nnear 1/2"))
    assert reason == "OSError: no file it.so near 1/2"


@pytest.mark.parametrize("cell", [grid.RNN, grid.GRU, grid.LSTM])
def test_the_model_in_pytorch_has_the_same_gradients(cell):
    pytest.importorskip("torch")
    shape = grid.Shape(cell, 1, 4, 2, 7)
    work = grid.make(shape, seed=0)
    loss = work.loss(candidates.baseline())
    wanted = jax.value_and_grad(loss)(work.point, work.batch.labels)
    lane = cudnn.lane(timing.VALUE_AND_GRAD, shape, work, graph=False)
    assert programs.check_equal(wanted, lane(), 1e-5, cell) <= 1e-5
    pullback = cudnn.lane(timing.BACKWARD, shape, work, graph=False)
    for _ in range(2):
        assert programs.check_equal(wanted, (wanted[0], pullback()), 1e-5, cell) <= 1e-5
    step = cudnn.lane(contenders.STEP, shape, work, graph=False)
    first, *_, last = (step().item() for _ in range(20))
    np.testing.assert_allclose(first, wanted[0], rtol=1e-5)
    assert last < first and step.seconds(1) > 0
