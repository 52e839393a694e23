"""The drawing of a schedule, in the manner of Figure 3 of BPPSA."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from parscan_bp.plots.base import COLOURS, NEUTRAL, new_figure
from parscan_bp.plots.schedule import RecordedStep, Recording, schedule_of
from parscan_bp.solvers import Solver
from parscan_bp.system import Ragged

LARGEST = 64
_PATH = COLOURS[1]
_COLOURMAP = colormaps["cividis_r"]

Positions = dict[RecordedStep, tuple[float, float]]


def draw_schedule(
    solver: Solver, chain: int | Ragged, *, features: int = 20, title: str | None = None
) -> Figure:
    """Draws which products a solver makes, level by level.

    Columns are the states of the chain, from the loss (left) to the input, with the transposed
    Jacobians between them; rows are levels, whose products are made at once. A square is a
    product of two matrices (beside it, if there is one, the product of a vector that goes with
    it), a circle a product of a matrix and a vector. Colour is the flops of a product, the red
    line is the critical path: the products, each needing the one before, that take the most
    flops.

    Args:
      solver: a solver that `parscan_bp.plots.record` knows.
      chain, features: see `schedule_of`; at most 64 steps.
      title: replaces the name of the solver and its counts.

    Returns:
      The figure.

    Raises:
      ValueError: if the chain is too long to be drawn, or there is no product.
      NotImplementedError, TypeError, ValueError: see `schedule_of`.

    Source: BPPSA Figure 3.

    Example:
      >>> import parscan_bp as pb
      >>> draw_schedule(pb.Blelloch(), 8).axes[0].get_ylabel()
      'level'
    """
    n = chain.length if isinstance(chain, Ragged) else chain
    if isinstance(n, int) and n > LARGEST:
        raise ValueError(f"chain: got {n} steps; at most {LARGEST} can be drawn")
    schedule = schedule_of(solver, chain, features=features)
    if not schedule.products:
        raise ValueError("chain: got one of which no product is made; there is nothing to draw")
    depth = len(schedule.levels)
    figure = new_figure(3.4 + 0.42 * n, 2.0 + 0.42 * depth)
    axes = figure.subplots()
    places = _places(schedule)
    path = schedule.critical_path()
    _edges(axes, schedule, places, path)
    _nodes(figure, axes, schedule, places)
    axes.set(xlim=(-0.6, n + 0.6), ylim=(depth + 0.6, -0.9), ylabel="level")
    for level in range(1, depth + 1, 2):
        axes.axhspan(level - 0.5, level + 0.5, color="#f5f5f5", zorder=0)
    axes.set_yticks(range(depth + 1), ["inputs", *map(str, range(1, depth + 1))])
    axes.set_xticks(range(n + 1), [f"$\\lambda_{{{n - k}}}$" for k in range(n + 1)])
    axes.set_xlabel("from the loss (left) to the input of the chain")
    for t in range(n):
        axes.text(t + 0.5, -0.4, f"$A_{{{n - t}}}$", ha="center", va="bottom", size=8)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0)
    axes.set_title(title or _title(solver, schedule), fontsize=10)
    _legend(figure)
    return figure


def _title(solver: Solver, schedule: Recording) -> str:
    counts = [
        f"{len(schedule.levels)} levels",
        f"{schedule.matrix_products} matrix products",
        f"{schedule.vector_products} vector products",
    ]
    return f"{type(solver).__name__}: {', '.join(counts)}"


def _places(schedule: Recording) -> Positions:
    """(column, level) of every input and product; a matrix lies before the state it leads to."""
    places: Positions = {}
    used = [node for state in schedule.states for node in state]
    used += [operand for node in schedule.products for operand in node.operands]
    for node in used:
        places[node] = (_column(node), 0)
    for level, nodes in enumerate(schedule.levels, 1):
        for node in nodes:
            places[node] = (_column(node), level)
    return places


def _column(node: RecordedStep) -> float:
    return node.stop - 0.5 if node.kind == "matrix" else float(node.stop)


def _edges(axes: Axes, schedule: Recording, places: Positions, path: list[RecordedStep]) -> None:
    """What every product needs; inputs in the lightest grey, the critical path on top."""
    lines: dict[bool, list] = {True: [], False: []}
    for node in schedule.products:
        for operand in node.operands:
            lines[bool(operand.operands)].append([places[operand], places[node]])
    axes.add_collection(LineCollection(lines[False], colors="#dddddd", linewidths=0.7, zorder=1))
    axes.add_collection(LineCollection(lines[True], colors="#888888", linewidths=0.9, zorder=1.5))
    steps = [[places[a], places[b]] for a, b in itertools.pairwise(path)]
    axes.add_collection(LineCollection(steps, colors=_PATH, linewidths=3.0, zorder=2))


def _nodes(figure: Figure, axes: Axes, schedule: Recording, places: Positions) -> None:
    flops = [node.flops for node in schedule.products]
    low, high = max(1, min(flops)), max(1, *flops)
    norm = LogNorm(low, high if high > low else 10 * low)
    for kind, marker, size in (("matrix", "s", 120), ("vector", "o", 60)):
        inputs = [p for node, p in places.items() if node.kind == kind and not node.operands]
        style: dict[str, Any] = {
            "marker": marker,
            "s": size,
            "edgecolors": "#555555",
            "linewidths": 0.8,
        }
        axes.scatter(*_columns(inputs), facecolors="white", zorder=3, **style)
        made = [node for node in schedule.products if node.kind == kind]
        axes.scatter(
            *_columns([places[node] for node in made]),
            c=[_COLOURMAP(norm(max(1, node.flops))) for node in made] or None,
            zorder=3,
            **style,
        )
    bar = figure.colorbar(ScalarMappable(norm, _COLOURMAP), ax=axes, pad=0.01, aspect=25)
    bar.set_label("flops of one product")


def _columns(points: list[tuple[float, float]]) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.array(points, float).reshape(-1, 2).T
    return x, y


def _legend(figure: Figure) -> None:
    plain: dict[str, Any] = {"linestyle": "", "markeredgecolor": "#555555"}
    handles = [
        Line2D([], [], marker="s", color=NEUTRAL, label="matrix · matrix", ms=9, **plain),
        Line2D([], [], marker="o", color=NEUTRAL, label="matrix · vector", ms=7, **plain),
        Line2D([], [], marker="s", color="white", label="given", ms=9, **plain),
        Line2D([], [], color=_PATH, lw=3, label="critical path"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
