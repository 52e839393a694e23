"""Pictures: what a solver does, what was learned, what was timed. Needs Matplotlib.

Every function returns a `matplotlib.figure.Figure` and touches no global state: no pyplot, no
settings, no window.
"""

from parscan_bp.plots import solver_products as solver_products
from parscan_bp.plots.base import new_figure as new_figure
from parscan_bp.plots.cotangents import draw_cotangents as draw_cotangents
from parscan_bp.plots.live_sets import draw_graph as draw_graph
from parscan_bp.plots.losses import draw_losses as draw_losses
from parscan_bp.plots.pipeline import draw_pipeline as draw_pipeline
from parscan_bp.plots.schedule import RecordedMap as RecordedMap
from parscan_bp.plots.schedule import RecordedStep as RecordedStep
from parscan_bp.plots.schedule import Recorder as Recorder
from parscan_bp.plots.schedule import Recording as Recording
from parscan_bp.plots.schedule import record as record
from parscan_bp.plots.schedule import schedule_of as schedule_of
from parscan_bp.plots.schedule_drawing import draw_schedule as draw_schedule
from parscan_bp.plots.timings import draw_fastest as draw_fastest
from parscan_bp.plots.timings import draw_speedups as draw_speedups

__all__ = [
    "RecordedMap",
    "RecordedStep",
    "Recorder",
    "Recording",
    "draw_cotangents",
    "draw_fastest",
    "draw_graph",
    "draw_losses",
    "draw_pipeline",
    "draw_schedule",
    "draw_speedups",
    "new_figure",
    "record",
    "schedule_of",
]
