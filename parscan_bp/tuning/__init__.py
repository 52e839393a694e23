"""Solvers raced on the machine at hand, its rates measured, and both remembered."""

from parscan_bp.tuning.api import autotune as autotune
from parscan_bp.tuning.api import autotune_calls as autotune_calls
from parscan_bp.tuning.machine import measure_machine as measure_machine
from parscan_bp.tuning.result import Tuning as Tuning

__all__ = ["Tuning", "autotune", "autotune_calls", "measure_machine"]
