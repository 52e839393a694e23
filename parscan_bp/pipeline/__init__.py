"""Pipelines: schedules as data, what stale weights do to training, and what helps.

Nothing here needs optax to be imported: an optimiser is any pair ``(init, update)`` with its
contract.
"""

from parscan_bp.pipeline.blocks import Block as Block
from parscan_bp.pipeline.blocks import as_block as as_block
from parscan_bp.pipeline.executors import Executor as Executor
from parscan_bp.pipeline.executors import Processes as Processes
from parscan_bp.pipeline.executors import Simulated as Simulated
from parscan_bp.pipeline.executors import Spmd as Spmd
from parscan_bp.pipeline.executors import Threads as Threads
from parscan_bp.pipeline.executors import Trained as Trained
from parscan_bp.pipeline.job import Job as Job
from parscan_bp.pipeline.momentum import unified_momentum as unified_momentum
from parscan_bp.pipeline.pipeline_report import PipelineReport as PipelineReport
from parscan_bp.pipeline.remedies import DelayCompensation as DelayCompensation
from parscan_bp.pipeline.remedies import ErrorFeedback as ErrorFeedback
from parscan_bp.pipeline.remedies import LearningRateByStaleness as LearningRateByStaleness
from parscan_bp.pipeline.remedies import Remedy as Remedy
from parscan_bp.pipeline.remedies import WeightPrediction as WeightPrediction
from parscan_bp.pipeline.remedies import stale_params as stale_params
from parscan_bp.pipeline.run import run as run
from parscan_bp.pipeline.schedules import DSP as DSP
from parscan_bp.pipeline.schedules import BackPropagation as BackPropagation
from parscan_bp.pipeline.schedules import DelayedGradients as DelayedGradients
from parscan_bp.pipeline.schedules import FeaturesReplay as FeaturesReplay
from parscan_bp.pipeline.schedules import GPipe as GPipe
from parscan_bp.pipeline.schedules import InterleavedOneFOneB as InterleavedOneFOneB
from parscan_bp.pipeline.schedules import OneFOneB as OneFOneB
from parscan_bp.pipeline.schedules import PipeDream as PipeDream
from parscan_bp.pipeline.schedules import PipeDream2BW as PipeDream2BW
from parscan_bp.pipeline.schedules import Schedule as Schedule
from parscan_bp.pipeline.schedules import Staleness as Staleness
from parscan_bp.pipeline.schedules import Table as Table
from parscan_bp.pipeline.schedules import Task as Task
from parscan_bp.pipeline.schedules import ZeroBubble as ZeroBubble
from parscan_bp.pipeline.stale import StaleState as StaleState
from parscan_bp.pipeline.stale import stale as stale
from parscan_bp.pipeline.stragglers import Stragglers as Stragglers
from parscan_bp.pipeline.stragglers import straggler_slow_down as straggler_slow_down
from parscan_bp.pipeline.timeline import Costs as Costs
from parscan_bp.pipeline.timeline import Span as Span
from parscan_bp.pipeline.timeline import bubble as bubble
from parscan_bp.pipeline.timeline import time_per_batch as time_per_batch
from parscan_bp.pipeline.timeline import timeline as timeline
from parscan_bp.pipeline.trainer import Pipeline as Pipeline

__all__ = [
    "DSP",
    "BackPropagation",
    "Block",
    "Costs",
    "DelayCompensation",
    "DelayedGradients",
    "ErrorFeedback",
    "Executor",
    "FeaturesReplay",
    "GPipe",
    "InterleavedOneFOneB",
    "Job",
    "LearningRateByStaleness",
    "OneFOneB",
    "PipeDream",
    "PipeDream2BW",
    "Pipeline",
    "PipelineReport",
    "Processes",
    "Remedy",
    "Schedule",
    "Simulated",
    "Span",
    "Spmd",
    "StaleState",
    "Staleness",
    "Stragglers",
    "Table",
    "Task",
    "Threads",
    "Trained",
    "WeightPrediction",
    "ZeroBubble",
    "as_block",
    "bubble",
    "run",
    "stale",
    "stale_params",
    "straggler_slow_down",
    "time_per_batch",
    "timeline",
    "unified_momentum",
]
