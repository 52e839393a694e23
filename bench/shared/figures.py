"""Making figures, and writing them beside the results."""

import pathlib
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from parscan_bp.plots import new_figure as new

__all__ = ["LARGEST_PNG", "mark", "new", "ratios", "save"]

LARGEST_PNG = 300_000


def save(figure: Figure, path: pathlib.Path) -> None:
    """Writes a PNG.

    Raises:
        ValueError: it is too large to be kept beside the results.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", dpi=110)
    size = path.stat().st_size
    if size > LARGEST_PNG:
        raise ValueError(f"{path.name} has {size} bytes, allowed are {LARGEST_PNG}: draw less")


def ratios(axes: Axes, names: Sequence[str]) -> None:
    """Dresses horizontal bars of speedups, one name at each integer."""
    axes.set_yticks(range(len(names)), names)
    axes.set_xscale("log")
    axes.axvline(1, color="grey", lw=0.8)


def mark(axes: Axes, target: float | None, place: float) -> None:
    """A black line at what is asked for, if something is."""
    if target:
        axes.plot([target] * 2, [place - 0.4, place + 0.4], color="black", lw=1.5)
