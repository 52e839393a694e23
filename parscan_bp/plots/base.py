"""What every picture shares: an empty figure and the colours."""

from __future__ import annotations

from parscan_bp.arguments import check_positive

try:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
except ImportError as error:
    raise ImportError(
        "parscan_bp.plots needs Matplotlib, which is not installed: pip install 'parscan_bp[plots]'"
    ) from error

COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#aa3377", "#66ccee")
"""Paul Tol's bright scheme, told apart with every kind of colour vision."""
NEUTRAL = "#bbbbbb"


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, sizes in inches, with the Agg canvas.

    Example:
      >>> new_figure(3, 2).get_size_inches().tolist()
      [3.0, 2.0]
    """
    check_positive("width", width)
    check_positive("height", height)
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure
