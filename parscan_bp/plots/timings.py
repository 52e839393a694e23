"""Maps of timings over sizes: how much faster, and which is the fastest."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from parscan_bp.arguments import as_int, described
from parscan_bp.plots.base import COLOURS, new_figure

# Colour saturates at 8x; the number in the square is not clipped.
_LARGEST_LOG2 = 3.0
_PALETTE = ("#d9d9d9", *COLOURS)


def draw_speedups(
    ratios: Mapping[str, np.ndarray],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    xlabel: str = "",
    ylabel: str = "",
    title: str = "",
    across: int = 1,
    boxed: Mapping[str, np.ndarray] | None = None,
    baseline: str = "the baseline",
) -> Figure:
    """Draws speedups over a baseline as heat maps, blue where faster and red where slower.

    Args:
      ratios: for each panel, by title, speedups of shape (len(rows), len(columns)); NaN, or what
        is not positive, where there is none.
      rows, columns: labels of the sizes.
      xlabel, ylabel: what the labels are.
      title: of the figure.
      across: panels in one row.
      boxed: for panels, by title, booleans of the same shape: squares that get a frame.
      baseline: what the ratios refer to, for the colour bar.

    Returns:
      The figure.

    Raises:
      TypeError: if ``ratios`` is no mapping, or labels are no sequences.
      ValueError: if there is no panel, or one has another shape.

    Example:
      >>> figure = draw_speedups({"Sweep": np.array([[2.0, 0.5]])}, ["T=100"], ["H=4", "H=20"])
      >>> [text.get_text() for text in figure.axes[0].texts]
      ['2', '0.5']
    """

    def paint(axes: Axes, name: str) -> Any:
        panel = np.asarray(ratios[name], float)
        panel = np.where(panel > 0, panel, math.nan)
        image = axes.imshow(
            np.log2(panel), cmap="RdBu", vmin=-_LARGEST_LOG2, vmax=_LARGEST_LOG2, aspect="auto"
        )
        for (row, column), ratio in np.ndenumerate(panel):
            if math.isnan(ratio):
                continue
            shade = "white" if abs(math.log2(ratio)) > 0.7 * _LARGEST_LOG2 else "black"
            axes.text(column, row, f"{ratio:.3g}", ha="center", va="center", color=shade, size=8)
        for row, column in np.argwhere((boxed or {}).get(name, np.zeros((0, 0)))):
            corner = (column - 0.5, row - 0.5)
            axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor="black", lw=2.5))
        return image

    _check_maps("ratios", ratios, rows, columns)
    across = as_int("across", across)
    figure, image = _panels(ratios, rows, columns, xlabel, ylabel, across, paint)
    bar = figure.colorbar(image, ax=figure.axes, shrink=0.6)
    bar.set_label(f"log2 of the speedup\nover {baseline}")
    figure.suptitle(title)
    return figure


def draw_fastest(
    times: Mapping[str, Mapping[str, np.ndarray]],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    xlabel: str = "",
    ylabel: str = "",
    title: str = "the fastest",
    across: int = 1,
) -> Figure:
    """Draws which of several is the fastest at each size, and by how much.

    The number is the time of the next best divided by that of the best.

    Args:
      times: for each panel, by title, for each competitor, by name, times of shape
        (len(rows), len(columns)) in any unit; NaN where there is none. The first competitor is
        grey. A square with fewer than two times stays empty.
      rows, columns, xlabel, ylabel, title, across: as in `draw_speedups`.

    Returns:
      The figure.

    Raises:
      TypeError: if ``times`` is no mapping of mappings, or labels are no sequences.
      ValueError: if there is no panel, one has another shape, or there are more than 7
        competitors.

    Example:
      >>> times = {"CPU": {"a": np.array([[1.0, 4.0]]), "b": np.array([[2.0, 2.0]])}}
      >>> figure = draw_fastest(times, ["T=100"], ["H=4", "H=20"])
      >>> [text.get_text() for text in figure.axes[0].texts]
      ['2.0x', '2.0x']
    """
    _check_maps("times", times, rows, columns)
    across = as_int("across", across)
    for name, panel in times.items():
        _check_mapping(f"times[{name!r}]", panel, "competitor")
    names = list(dict.fromkeys(name for panel in times.values() for name in panel))
    if len(names) > len(_PALETTE):
        raise ValueError(f"times: got {len(names)} competitors; at most {len(_PALETTE)} are wanted")
    colours = ListedColormap(_PALETTE[: len(names)])
    empty = np.full((len(rows), len(columns)), math.nan)

    def paint(axes: Axes, name: str) -> Any:
        each = np.stack([np.asarray(times[name].get(other, empty), float) for other in names])
        ranked = np.sort(each, axis=0)  # NaN last
        best = np.where(np.isnan(each), math.inf, each).argmin(axis=0)
        measured = np.isfinite(each).sum(axis=0) > 1
        shown = np.where(measured, best, math.nan)
        for row, column in np.argwhere(measured):
            margin = ranked[1, row, column] / ranked[0, row, column]
            dark = np.dot(to_rgb(_PALETTE[best[row, column]]), (0.3, 0.59, 0.11)) < 0.55
            axes.text(
                column,
                row,
                f"{margin:.1f}x",
                ha="center",
                va="center",
                color="white" if dark else "black",
                size=8,
            )
        return axes.imshow(shown, cmap=colours, vmin=-0.5, vmax=len(names) - 0.5, aspect="auto")

    panels = {name: next(iter(panel.values()), empty) for name, panel in times.items()}
    figure, _ = _panels(panels, rows, columns, xlabel, ylabel, across, paint)
    patches = [Patch(color=_PALETTE[k], label=name) for k, name in enumerate(names)]
    figure.legend(handles=patches, loc="outside lower center", ncols=min(len(names), 4))
    figure.suptitle(title)
    return figure


def _check_maps(argument: str, maps: Any, rows: Any, columns: Any) -> None:
    """Raises `TypeError` unless there are panels by their names, and labels."""
    _check_mapping(argument, maps, "panel")
    for name, labels in (("rows", rows), ("columns", columns)):
        if isinstance(labels, str) or not hasattr(labels, "__len__"):
            raise TypeError(
                f"{name}: got {described(labels)}; a sequence of the labels of all {name} is wanted"
            )


def _check_mapping(argument: str, given: Any, of: str) -> None:
    if not isinstance(given, Mapping):
        raise TypeError(
            f"{argument}: got {described(given)}; a mapping from the name of each {of} is wanted"
        )


def _panels(
    shapes: Mapping[str, np.ndarray],
    rows: Sequence[str],
    columns: Sequence[str],
    xlabel: str,
    ylabel: str,
    across: int,
    paint: Callable[[Axes, str], Any],
) -> tuple[Figure, Any]:
    """A figure with a painted panel for each entry, and the last image."""
    if not shapes:
        raise ValueError("got no panels; at least one is wanted")
    for name, panel in shapes.items():
        if np.shape(panel) != (len(rows), len(columns)):
            raise ValueError(
                f"panel {name!r}: got shape {np.shape(panel)}; {len(rows)} rows and "
                f"{len(columns)} columns are wanted"
            )
    down = -(-len(shapes) // across)
    # A panel is at least as wide as its title, at 0.085 inches a character.
    each = max(0.55 * len(columns), 0.085 * max(map(len, shapes)))
    width = 1.8 + (0.9 + each) * across
    figure = new_figure(max(width, 4.0), 1.3 + (0.9 + 0.32 * len(rows)) * down)
    grid = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    for axes in grid.flat[len(shapes) :]:
        axes.set_visible(False)
    for axes, name in zip(grid.flat, shapes, strict=False):
        image = paint(axes, name)
        axes.set_title(name, size=9)
        axes.set_xticks(range(len(columns)), columns, size=8)
        axes.set_yticks(range(len(rows)), rows, size=8)
        # What was not measured shows the hatched ground.
        axes.patch.set(facecolor="white", hatch="////", edgecolor="#aaaaaa")
    for axes in grid[-1]:
        axes.set_xlabel(xlabel, size=9)
    for axes in grid[:, 0]:
        axes.set_ylabel(ylabel, size=9)
    return figure, image
