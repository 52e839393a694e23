"""Figures of process grids: the curve between its points, the bars, what is printed and drawn."""

import json
import math

import pytest

from bench import __main__ as command
from bench.paper.grids import report, simulate


def test_the_curve_goes_through_what_was_measured():
    curve = simulate.Curve({1: 1.0, 4: 2.0, 16: 4.0})
    assert [curve(b) for b in (1, 4, 16)] == [1.0, 2.0, 4.0]
    assert curve(2) == pytest.approx(math.sqrt(2)) and curve(64) == 16.0 and curve(0.5) == 0.5


def test_compute_that_explains_two_speedups():
    compute = simulate.compute_that_explains(80.0, {"communication": 5.0, "total": 2.0})
    assert (80 + compute) / (80 / 5 + compute) == pytest.approx(2.0)


def test_bars_follow_the_equations():
    curve = simulate.Curve({1: 0.01})
    one = simulate.bar("figure 7", simulate.MIXED, 2048, 16, 32, curve)
    assert one.grid == "16 x 32" and one.paper["communication"] == 9.7
    assert one.equation == pytest.approx(9.91e-3, rel=1e-3)
    assert one.compute == pytest.approx(0.01 * 64 / 16)
    assert one.total == pytest.approx(one.compute + one.equation)
    hidden = simulate.bar("figure 8", simulate.MIXED, 2048, 16, 32, curve)
    assert one.total > hidden.total > one.compute
    # Figure 10: each doubling of P halves the images' parts.
    seconds = [
        simulate.bar("figure 10", simulate.DOMAIN, 512, rows, 512, curve).equation
        for rows in (1, 2, 4, 8)
    ]
    assert [round(1e3 * s, 1) for s in seconds] == [81.4, 42.5, 23.1, 13.3]
    # 256 channels in two groups cannot be divided among 512.
    assert simulate.program(simulate.SAME, 2048, 512, 1) is None


def test_figures_are_printed_and_drawn_of_a_record(monkeypatch):
    monkeypatch.setattr(simulate, "SCALING", (8, 512))
    monkeypatch.setattr(simulate, "BEYOND", (512, 1024))
    monkeypatch.setattr(report, "_panels", lambda figure, bars: report._panel_of(figure, bars))
    sides = {"baseline": {"median": 0.1, "iqr": 0.01}, "speedup": 1.0, "low": 0.9, "high": 1.1}
    result = {"compute": [{"batch": b, "iteration": sides} for b in (1, 2)]}
    told = report.text(result)
    for words in (
        "figure 4",
        "figure 6",
        "figure 10",
        "communication 9.7, total 2.5",
        "eq. 5 says",
    ):
        assert words in told
    assert set(report.draw(result)) == {"", *(f"_figure{k}" for k in (6, 7, 8, 9, 10))}


@pytest.mark.slow
def test_the_bench_runs(tmp_path):
    command.main(["grids", "--quick", "--rounds", "2", "--out", str(tmp_path)])
    result = json.loads((tmp_path / "grids.json").read_text())
    assert [point["batch"] for point in result["compute"]] == [1, 2]
    assert all(point["error"] <= 1e-4 for point in result["compute"])
