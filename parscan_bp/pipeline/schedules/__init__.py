"""Schedules of pipelines, as data: tick tables that can be printed, checked, drawn and run.

Decoupled Neural Interfaces (Jaderberg et al., 2017), in figure 3 of DSP, are left out: their
blocks do not wait for an error gradient, but learn networks of their own that guess it, so that
no order of passes and no age of weights describes what they compute.
"""

from parscan_bp.pipeline.schedules.back_propagation import BackPropagation as BackPropagation
from parscan_bp.pipeline.schedules.base import Schedule as Schedule
from parscan_bp.pipeline.schedules.delayed_gradients import DelayedGradients as DelayedGradients
from parscan_bp.pipeline.schedules.dsp import DSP as DSP
from parscan_bp.pipeline.schedules.features_replay import FeaturesReplay as FeaturesReplay
from parscan_bp.pipeline.schedules.gpipe import GPipe as GPipe
from parscan_bp.pipeline.schedules.interleaved import InterleavedOneFOneB as InterleavedOneFOneB
from parscan_bp.pipeline.schedules.one_f_one_b import OneFOneB as OneFOneB
from parscan_bp.pipeline.schedules.pipedream import PipeDream as PipeDream
from parscan_bp.pipeline.schedules.pipedream_2bw import PipeDream2BW as PipeDream2BW
from parscan_bp.pipeline.schedules.table import Held as Held
from parscan_bp.pipeline.schedules.table import Staleness as Staleness
from parscan_bp.pipeline.schedules.table import Table as Table
from parscan_bp.pipeline.schedules.task import Task as Task
from parscan_bp.pipeline.schedules.zero_bubble import ZeroBubble as ZeroBubble

__all__ = [
    "DSP",
    "BackPropagation",
    "DelayedGradients",
    "FeaturesReplay",
    "GPipe",
    "Held",
    "InterleavedOneFOneB",
    "OneFOneB",
    "PipeDream",
    "PipeDream2BW",
    "Schedule",
    "Staleness",
    "Table",
    "Task",
    "ZeroBubble",
]
