"""Tick tables run on devices: by one program for all stages, or by a program for each."""

from parscan_bp.pipeline.executors.mpmd import run_mpmd as run_mpmd
from parscan_bp.pipeline.executors.processes import blocks_here as blocks_here
from parscan_bp.pipeline.executors.processes import run_processes as run_processes
from parscan_bp.pipeline.executors.spmd import SpmdProgram as SpmdProgram
from parscan_bp.pipeline.executors.spmd import run_spmd as run_spmd
from parscan_bp.pipeline.executors.spmd import spmd_program as spmd_program

__all__ = ["SpmdProgram", "blocks_here", "run_mpmd", "run_processes", "run_spmd", "spmd_program"]
