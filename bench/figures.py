"""Making figures, and writing them beside the results."""

import pathlib

from matplotlib.figure import Figure

from parscan_bp.plots import new_figure as new

__all__ = ["LARGEST_PNG", "new", "save"]

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
