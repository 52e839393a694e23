"""How a bench is declared: its options, its files, and what happens where a point fails."""

import importlib
import json

import pytest

from bench.__main__ import BENCHES
from bench.gpu import report as gpu
from bench.shared import figures, programs, record, timing
from bench.shared.bench import Bench, Listed, Named, Option, Whole, effort, racing

# One of them was put together by hand, and is of no command.
RECORDED = list((record.HERE / "results").glob("*.json"))


def _measure(n, options):
    """Sums, one of which may be wrong."""
    error = programs.check_equal(n, n + options.wrong * (n == 3), 1e-6, f"the sum of {n}")
    race = timing.race({"sum": lambda: n}, {"ours": {"sum": lambda: n}}, **effort(options))
    return {"error": error, **race.to_json("ours", ["sum"])}


def _declared(**others):
    return Bench(
        **{
            "name": "sums",
            "about": "Sums.",
            "baseline": "sums by heart",
            "points": lambda options: {f"n={n}": n for n in options.n},
            "measure": _measure,
            "text": lambda result: f"{len(result['points'])} sums, {result['kind']}",
            "rows": Listed("points"),
            "options": (Option("n", [3, 5]), Option("wrong", 0.0), Option("seed", 0), *racing()),
            "quick": {"n": [3]},
            "facts": lambda options: {"kind": "whole", "settings": {"sides": 2}},
            **others,
        }
    )


def _run(folder, *argv, **others):
    _declared(**others).main([*argv, "--out", str(folder)])
    return json.loads((folder / "sums.json").read_text())


def test_a_bench_of_a_few_lines_measures_records_and_prints(tmp_path, capsys):
    drawn = {"_bars": figures.new(1, 1)}
    result = _run(tmp_path, "--rounds", "3", "--min-rounds", "2", draw=lambda result: drawn)
    assert [point["name"] for point in result["points"]] == ["n=3", "n=5"]
    assert result["points"][0]["sum"]["rounds"] == 3 and result["kind"] == "whole"
    settings = {"n": [3, 5], "wrong": 0.0, "seed": 0, "sides": 2}
    effort = {"rounds": 3, "min_rounds": 2, "budget_seconds": 15.0}
    assert result["settings"] == {**settings, **effort}
    assert {"device", "versions", "date", "load_end"} <= result["runs"][0].keys()
    assert (tmp_path / "sums_bars.png").exists()
    shown = "2 sums, whole\nbaseline: sums by heart\ndrew sums_bars.png\n"
    assert capsys.readouterr().out == shown and result["baseline"] == "sums by heart"


def test_quick_sets_what_is_not_named_and_is_not_recorded(tmp_path):
    bench = _declared()
    quick = bench.parse(["--quick"])
    assert (quick.n, quick.rounds, quick.budget_seconds) == ([3], 2, 0.0)
    assert bench.parse(["--quick", "--n", "7", "8"]).n == [7, 8]
    with pytest.raises(SystemExit):
        bench.parse(["--quick", "--record"])


def test_only_some_points_are_measured_again(tmp_path):
    _run(tmp_path, "--quick", "--n", "3", "4")
    first = _run(tmp_path, "--quick", "--n", "3", "4", "5", "--resume")
    assert [point["name"] for point in first["points"]] == ["n=3", "n=4", "n=5"]
    assert len(first["runs"]) == 2
    again = _run(tmp_path, "--quick", "--only", "3", "--resume")
    assert [point["name"] for point in again["points"]] == ["n=4", "n=5", "n=3"]
    assert again["points"][:2] == first["points"][1:]
    with pytest.raises(SystemExit, match=r"no name has \['9'\]; there are \['n=3'\]"):
        _run(tmp_path, "--quick", "--only", "9")
    with pytest.raises(ValueError, match=r"sums.json has --seed 0, this is 1"):
        _run(tmp_path, "--seed", "1", "--resume")


def test_a_file_of_another_machine_is_not_gone_on_with(tmp_path):
    result = _run(tmp_path, "--quick")
    result["runs"][0]["cpu"]["model"] = "abacus"
    (tmp_path / "sums.json").write_text(json.dumps(result))
    with pytest.raises(ValueError, match=r"was measured with cpu .*abacus.* choose another --name"):
        _run(tmp_path, "--resume")


@pytest.mark.parametrize("rows", [Listed("points"), Named("points")])
def test_a_point_that_fails_is_told_when_the_others_are_done(tmp_path, rows):
    with pytest.raises(RuntimeError, match="1 points failed:\nn=3: FloatingPointError: the sum"):
        _run(tmp_path, "--wrong", "1", "--rounds", "1", rows=rows)
    result = json.loads((tmp_path / "sums.json").read_text())
    assert rows.names(result) == {"n=5"} and list(result["failed"]) == ["n=3"]
    mended = _run(tmp_path, "--rounds", "1", "--resume", rows=rows)
    assert rows.names(mended) == {"n=3", "n=5"} and "failed" not in mended


def test_parts_that_rest_on_each_other_stop_at_the_first_that_fails(tmp_path):
    with pytest.raises(FloatingPointError):
        _run(tmp_path, "--wrong", "1", rows=Whole())


def test_a_file_is_reported_without_measuring(tmp_path, capsys):
    _run(tmp_path, "--quick")
    capsys.readouterr()
    _declared(measure=None).main(["--report", str(tmp_path / "sums.json")])
    assert capsys.readouterr().out == "1 sums, whole\nbaseline: sums by heart\n"
    with pytest.raises(SystemExit):
        _declared().parse(["--report", "a.json", "b.json"])


@pytest.mark.parametrize("path", sorted(RECORDED), ids=lambda path: path.stem)
def test_every_record_can_be_read(path):
    name, result = path.stem.partition("_")[0], json.loads(path.read_text())
    text = gpu.text if name == "gpu" else importlib.import_module(BENCHES[name]).BENCH.text
    assert len(text(result).splitlines()) > 3


@pytest.mark.parametrize("name", ["gru", "jacobians", "lenet", "reuse", "rnn", "spgemm", "vgg11"])
def test_every_recorded_figure_can_be_drawn(name):
    bench = importlib.import_module(BENCHES[name]).BENCH
    folder = record.HERE / "results"
    drawn = bench.draw(json.loads((folder / f"{name}.json").read_text()))
    kept = {path.stem.removeprefix(name) for path in folder.glob(f"{name}*.png")}
    assert set(drawn) == kept


@pytest.mark.parametrize("name", BENCHES)
def test_a_bench_has_the_name_of_its_command(name):
    module = importlib.import_module(BENCHES[name])
    assert getattr(module, "BENCH", None) is None or module.BENCH.name == name
