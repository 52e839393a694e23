"""Pictures of a grid: speedup as a heat map for each solver, and which solver wins where."""

import math
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch, Rectangle

from bench import figures, scan_report, workloads
from bench.scan_report import Lane, Result

# Colour saturates at 8x; the number in the square is not clipped.
_LARGEST_LOG2 = 3.0
_BASELINE = "lax.scan"
_PALETTE = ("#d9d9d9", "#4477aa", "#ee6677", "#228833", "#ccbb44", "#aa3377")


def draw(result: Result, path: pathlib.Path) -> list[pathlib.Path]:
    """Draws `<path>_<solver>.png` for each solver, and `<path>_winner.png` of several.

    Returns:
        The files written.
    """
    comparisons = dict(scan_report.lanes(result))
    solvers = list(dict.fromkeys(lane.solver for lane in comparisons))
    written = []
    for solver in solvers:
        own = {lane: entry for lane, entry in comparisons.items() if lane.solver == solver}
        written.append(_heat_map(own, solver, path.with_name(f"{path.stem}_{solver}.png")))
    if len(solvers) > 1:
        written.append(_winners(comparisons, solvers, path.with_name(f"{path.stem}_winner.png")))
    return written


def _heat_map(comparisons: dict[Lane, Any], solver: str, path: pathlib.Path) -> pathlib.Path:
    slow = {
        (lane.size, lane.mode)
        for lane, entry in comparisons.items()
        if scan_report.is_too_slow(lane, entry)
    }
    values = {(lane.size, lane.mode): entry["speedup"] for lane, entry in comparisons.items()}

    def paint(axes: Axes, sizes: list[list[workloads.Size]], mode: str) -> Any:
        ratios = np.array([[_positive(values.get((s, mode))) for s in row] for row in sizes])
        image = axes.imshow(
            np.log2(ratios), cmap="RdBu", vmin=-_LARGEST_LOG2, vmax=_LARGEST_LOG2, aspect="auto"
        )
        for (row, column), ratio in np.ndenumerate(ratios):
            if math.isnan(ratio):
                continue
            shade = "white" if abs(math.log2(ratio)) > 0.7 * _LARGEST_LOG2 else "black"
            axes.text(column, row, f"{ratio:.3g}", ha="center", va="center", color=shade, size=8)
            if (sizes[row][column], mode) in slow:
                corner = (column - 0.5, row - 0.5)
                axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor="black", lw=2.5))
        return image

    figure, image = _panels(comparisons, paint)
    bar = figure.colorbar(image, ax=figure.axes, shrink=0.6)
    bar.set_label("log2 of the speedup over tuned jax.lax.scan")
    figure.suptitle(f"parscan_bp.scan, {solver}: numbers are speedups, boxes fail the limit")
    figures.save(figure, path)
    return path


def _winners(comparisons: dict[Lane, Any], solvers: list[str], path: pathlib.Path) -> pathlib.Path:
    names = [_BASELINE, *solvers]

    def paint(axes: Axes, sizes: list[list[workloads.Size]], mode: str) -> Any:
        def best(size: workloads.Size) -> float:
            own = {s: comparisons.get(Lane(size, s, mode)) for s in solvers}
            ratios = {_BASELINE: 1.0, **{s: e["speedup"] for s, e in own.items() if e is not None}}
            return names.index(max(ratios, key=ratios.__getitem__)) if len(ratios) > 1 else math.nan

        grid = np.array([[best(size) for size in row] for row in sizes])
        colours = ListedColormap([_PALETTE[index] for index in range(len(names))])
        return axes.imshow(grid, cmap=colours, vmin=-0.5, vmax=len(names) - 0.5, aspect="auto")

    figure, _ = _panels(comparisons, paint)
    patches = [Patch(color=_PALETTE[index], label=name) for index, name in enumerate(names)]
    figure.legend(handles=patches, loc="outside lower center", ncols=len(names))
    figure.suptitle("the fastest, by median")
    figures.save(figure, path)
    return path


def _panels(
    comparisons: dict[Lane, Any],
    paint: Callable[[Axes, list[list[workloads.Size]], str], Any],
) -> tuple[Any, Any]:
    """A panel for each mode (down) and cell (across): (B, T) down, H across."""
    sizes = {lane.size for lane in comparisons}
    modes = list(dict.fromkeys(lane.mode for lane in comparisons))
    cells = [cell for cell in workloads.CELLS if any(size.cell == cell for size in sizes)]
    widths = sorted({size.hidden for size in sizes})
    shapes = sorted({(size.batch, size.length) for size in sizes})
    height = 0.9 + 0.3 * len(shapes)
    figure = figures.new(1.8 + (0.9 + 0.45 * len(widths)) * len(cells), 1 + height * len(modes))
    panels = figure.subplots(len(modes), len(cells), squeeze=False, sharex=True, sharey=True)
    for mode, row in zip(modes, panels, strict=True):
        for cell, axes in zip(cells, row, strict=True):
            grid = [[workloads.Size(cell, h, b, t) for h in widths] for b, t in shapes]
            image = paint(axes, grid, mode)
            axes.set_title(f"{cell}, {mode}", size=9)
            axes.set_xticks(range(len(widths)), [f"{h}" for h in widths], size=8)
            axes.set_yticks(range(len(shapes)), [f"B={b} T={t}" for b, t in shapes], size=8)
            # Points that were not measured show the hatched ground.
            axes.patch.set(facecolor="white", hatch="////", edgecolor="#aaaaaa")
    for axes in panels[-1]:
        axes.set_xlabel("H", size=9)
    return figure, image


def _positive(ratio: float | None) -> float:
    # A backward pass is a difference; noise can make it negative, and then it has no logarithm.
    return ratio if ratio is not None and ratio > 0 else math.nan
