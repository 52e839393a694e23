"""Tick tables run on devices: by one program for all stages, or by a program for each."""

from parscan_bp.pipeline.executors.base import Executor as Executor
from parscan_bp.pipeline.executors.base import Trained as Trained
from parscan_bp.pipeline.executors.processes import Processes as Processes
from parscan_bp.pipeline.executors.simulated import Simulated as Simulated
from parscan_bp.pipeline.executors.spmd import Spmd as Spmd
from parscan_bp.pipeline.executors.threads import Threads as Threads

__all__ = ["Executor", "Processes", "Simulated", "Spmd", "Threads", "Trained"]
