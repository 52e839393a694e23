"""Pictures of a grid: speedup as a heat map for each solver, and which solver wins where."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from bench.grids import workloads
from bench.grids.scan import report
from bench.grids.scan.report import Lane
from bench.shared import candidates, tables
from bench.shared.bench import Result
from parscan_bp import plots

_BASELINE = "lax.scan"


def draw(result: Result) -> dict[str, Figure]:
    """A figure for each solver, and where there are several, which of them is the fastest."""
    comparisons = dict(report.lanes(result))
    solvers = list(dict.fromkeys(lane.solver for lane in comparisons))
    drawn = {}
    for solver in solvers:
        own = {lane: entry for lane, entry in comparisons.items() if lane.solver == solver}
        drawn[f"_{solver}"] = _speedups(own, solver)
    if len(solvers) > 1:
        drawn["_winner"] = _fastest(comparisons, solvers)
    return drawn


def _speedups(comparisons: dict[Lane, Any], solver: str) -> Figure:
    def speedup(lane: Lane) -> float:
        told = lane in comparisons and tables.is_resolved(comparisons[lane])
        return comparisons[lane]["speedup"] if told else math.nan

    def is_too_slow(lane: Lane) -> bool:
        return lane in comparisons and report.is_too_slow(lane, comparisons[lane])

    whose = _BASELINE if solver == candidates.CHECKPOINTED else "parscan_bp.scan"
    return plots.draw_speedups(
        _panels(comparisons, solver, speedup),
        boxed=_panels(comparisons, solver, is_too_slow),
        baseline="tuned jax.lax.scan",
        title=f"{whose}, {solver}: numbers are speedups, boxes fail the limit",
        **_labels(comparisons),
    )


def _fastest(comparisons: dict[Lane, Any], solvers: list[str]) -> Figure:
    def time(lane: Lane) -> float:
        return 1 / comparisons[lane]["speedup"] if lane in comparisons else math.nan

    each = {solver: _panels(comparisons, solver, time) for solver in solvers}
    times = {
        name: {_BASELINE: np.ones_like(panel), **{s: each[s][name] for s in solvers}}
        for name, panel in each[solvers[0]].items()
    }
    title = "the fastest, by median, and its lead over the next"
    return plots.draw_fastest(times, title=title, **_labels(comparisons))


def _panels(
    comparisons: dict[Lane, Any], solver: str, value: Callable[[Lane], Any]
) -> dict[str, np.ndarray]:
    """A panel for each mode (down) and cell (across): (B, T) down, H across."""
    modes, cells, shapes, widths = _axes(comparisons)
    return {
        f"{cell}, {mode}": np.array(
            [
                [value(Lane(workloads.Size(cell, h, b, t), solver, mode)) for h in widths]
                for b, t in shapes
            ]
        )
        for mode in modes
        for cell in cells
    }


def _labels(comparisons: dict[Lane, Any]) -> dict[str, Any]:
    _, cells, shapes, widths = _axes(comparisons)
    rows, columns = [f"B={b} T={t}" for b, t in shapes], [f"{h}" for h in widths]
    return {"rows": rows, "columns": columns, "xlabel": "H", "across": len(cells)}


def _axes(comparisons: dict[Lane, Any]) -> tuple[list[str], list[str], list, list[int]]:
    sizes = {lane.size for lane in comparisons}
    modes = list(dict.fromkeys(lane.mode for lane in comparisons))
    cells = [cell for cell in workloads.CELLS if any(size.cell == cell for size in sizes)]
    shapes = sorted({(size.batch, size.length) for size in sizes})
    return modes, cells, shapes, sorted({size.hidden for size in sizes})
