"""Drawing without global state: figures are objects, the Agg canvas writes them, no pyplot."""

import pathlib

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

LARGEST_PNG = 300_000


def new(width: float, height: float) -> Figure:
    """An empty figure, sizes in inches, with the Agg canvas."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


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
