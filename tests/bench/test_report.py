"""Verdicts, records and tables, on results made by hand."""

import argparse
import copy
import json
import pathlib
import platform

import pytest

from bench.grids import workloads
from bench.grids.forward import report as forward
from bench.grids.scan import bench as scan
from bench.grids.scan import figures as scan_figures
from bench.grids.scan import report as scan_report
from bench.shared import figures, record, tables, timing

SIZES = [workloads.Size("elman", 4, 1, 100), workloads.Size("elman", 20, 1, 100)]


def _entry(speedup, high):
    return {"speedup": speedup, "low": speedup - 0.05, "high": high, "again": 1.0}


def _point(size, high, temp=(1000, 1000, 1000), solver="auto"):
    ours, plain, lean = ({"temp_bytes": bytes_, "compile_seconds": 0.1} for bytes_ in temp)
    modes = {mode: _entry(high - 0.01, high) for mode in (timing.VALUE_AND_GRAD, "hvp")}
    return {
        **{"cell": size.cell, "hidden": size.hidden, "batch": size.batch, "length": size.length},
        **{"status": "measured", "choice": "Sweep()", "checkpointed": lean},
        "baseline": {"programs": {timing.VALUE_AND_GRAD: plain}, "refused": {}},
        "solvers": {
            solver: {"programs": {timing.VALUE_AND_GRAD: ours}, "refused": {}, "modes": modes}
        },
        "asked": {"solvers": [solver], "modes": list(modes)},
    }


def _result(*points):
    return {"runs": [], "settings": {"wrt": "params", "seed": 0}, "points": list(points)}


def test_only_a_whole_interval_below_the_limit_is_too_slow():
    # 0.93 is below value_and_grad's limit (0.95) and above hvp's (0.9).
    result = _result(_point(SIZES[0], 0.93), _point(SIZES[1], 0.96))
    assert list(scan_report.too_slow(result)) == [
        scan_report.Lane(SIZES[0], "auto", timing.VALUE_AND_GRAD)
    ]


def test_a_slow_backward_pass_alone_has_no_limit():
    point = _point(SIZES[0], 1.2)
    point["solvers"]["auto"]["modes"][timing.BACKWARD] = _entry(0.2, 0.3)
    assert not scan_report.too_slow(_result(point))


def test_a_checkpointed_lax_scan_is_not_judged():
    result = _result(_point(SIZES[0], 0.5, (5_000_000, 10, 10), solver="checkpointed"))
    assert not scan_report.too_slow(result) and not scan_report.too_large(result)
    words = scan_report.verdicts(result)
    assert "0 comparisons judged" in words and "0 of 0 memory figures" in words


def test_a_point_fails_only_twice():
    first = _result(_point(SIZES[0], 0.8), _point(SIZES[1], 0.8))
    second = _result(_point(SIZES[0], 0.8), _point(SIZES[1], 1.1))
    once = scan_report.verdicts(first)
    assert "slower, twice: 0" in once and "not measured again: 4" in once
    both = scan_report.verdicts(first, second)
    assert "slower, twice: 2" in both
    assert "not measured again: 0" in both
    assert "cleared by the second measurement: 2" in both


@pytest.mark.parametrize(
    ("temp", "words"),
    [
        ((2_000_000, 1_900_000, 1_900_000), []),
        ((2_000_000, 1_500_000, 1_900_000), ["1.33x jax.lax.scan"]),
        ((5_000_000, 5_000_000, 2_000_000), ["2.50x checkpointed"]),
        ((9_000_000, 5_000_000, 2_000_000), ["1.80x jax.lax.scan", "4.50x checkpointed"]),
        ((9_000, 10, 10), []),
    ],
)
def test_memory_limits(temp, words):
    lines = scan_report.too_large(_result(_point(SIZES[0], 1.0, temp)))
    assert len(lines) == bool(words)
    assert all(word in lines[0] for word in words)


def test_confirmation_measures_only_what_failed():
    options = scan.BENCH.parse(["--confirm", "first.json"])
    first = _result(_point(SIZES[0], 0.93), _point(SIZES[1], 0.99))
    (task,) = scan.again(first, options).values()
    assert (task.size, task.modes, task.solvers) == (SIZES[0], (timing.VALUE_AND_GRAD,), ("auto",))
    options.wrt = "all"
    with pytest.raises(ValueError, match="--wrt params"):
        scan.again(first, options)


def test_overview_shows_choice_refusal_and_skipped_points():
    refused = _point(SIZES[1], 1.0, solver="blelloch")
    refused["solvers"]["blelloch"] = {"programs": {}, "refused": {"hvp": "too big"}, "modes": {}}
    skipped = {**_point(SIZES[1], 1.0), "status": "skipped", "reason": "needs 3 GB"}
    del skipped["solvers"]
    text = scan_report.overview(_result(_point(SIZES[0], 1.0), refused, skipped))
    assert "auto = Sweep()" in text and "refused" in text and "skipped: needs 3 GB" in text


def test_grid_figures_are_small_and_one_for_each_solver(tmp_path):
    both = _point(SIZES[0], 0.8)
    both["solvers"]["sweep"] = copy.deepcopy(both["solvers"]["auto"])
    drawn = scan_figures.draw(_result(both, _point(SIZES[1], 2.0)))
    assert list(drawn) == ["_auto", "_sweep", "_winner"]
    for name, figure in drawn.items():
        path = tmp_path / f"grid{name}.png"
        figures.save(figure, path)
        assert 1000 < path.stat().st_size < figures.LARGEST_PNG


def test_too_large_a_figure_raises(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "LARGEST_PNG", 10)
    with pytest.raises(ValueError, match="draw less"):
        figures.save(figures.new(1, 1), tmp_path / "f.png")


def test_a_record_has_no_path_and_no_host_name(tmp_path):
    argv = ["--confirm", str(tmp_path / "first.json"), f"--out={tmp_path}", "--T", "10"]
    target = tmp_path / "deep" / "result.json"
    record.write(target, {"runs": [record.environment(argv)], "seconds": [1.0, 2.5e-05]})
    text = target.read_text()
    assert str(tmp_path.parent) not in text and str(pathlib.Path.home()) not in text
    assert "/" not in json.dumps(json.loads(text)["runs"][0]["argv"])
    node = platform.node()
    assert not node or f'"{node}"' not in text
    assert json.loads(text)["runs"][0]["argv"][1] == "first.json"
    assert "[1.0, 2.5e-05]" in text
    run = json.loads(text)["runs"][0]
    assert run["cpu"]["cores"] >= 1 and len(run["load_start"]) == 3
    assert set(run["versions"]) == {"python", "jax", "jaxlib", "numpy"}
    assert [p.name for p in target.parent.iterdir()] == ["result.json"]


def test_results_go_to_out_unless_recorded():
    parser = argparse.ArgumentParser(parents=[record.output_options("x")])
    assert record.result_path(parser.parse_args([])).parts[-3:] == ("bench", "out", "x.json")
    recorded = parser.parse_args(["--record", "--name", "y"])
    assert record.result_path(recorded).parts[-3:] == ("bench", "results", "y.json")


def test_a_result_that_is_not_a_number_is_not_written(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        record.write(tmp_path / "r.json", {"speedup": float("nan")})


def test_units():
    assert [tables.seconds(s) for s in (1.5, 2e-3, 3e-6)] == ["1.50 s", "2.00 ms", "3.0 us"]
    assert [tables.size(b) for b in (12, 2_500, 3e6, 4.2e9)] == [
        "12 B",
        "2.5 kB",
        "3.0 MB",
        "4.2 GB",
    ]


def test_a_forward_method_that_fell_back_says_so():
    def entry(speedup, *certified):
        trials = [{"passes": 1 + k, "certified": c} for k, c in enumerate(certified)]
        return {timing.VALUE: {"speedup": speedup}, "trials": trials}

    size = {"system": "gru", "hidden": 2, "batch": 1, "length": 9, "strength": 0.5}
    methods = {"chunks": entry(0.5, True, True), "newton": entry(0.25, True, False)}
    point = {**size, "exponents": [-0.5, None, -0.25], "methods": {**methods, "frozen": {}}}
    *_, row = forward.page([{"points": [point]}] * 2).splitlines()
    assert row == "| gru, 0.5 | -0.38 | 0.5 (1.5), 0.5 (1.5) | 0.25 (back), 0.25 (back) | -, - |"
