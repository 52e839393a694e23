"""Solvers raced on the machine at hand, and the winner remembered."""

from parscan_bp.tuning.api import autotune as autotune
from parscan_bp.tuning.result import Tuning as Tuning

__all__ = ["Tuning", "autotune"]
