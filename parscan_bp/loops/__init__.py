"""Loops of which nobody knows how often they run, and that have every derivative."""

from parscan_bp.loops.api import while_loop as while_loop
from parscan_bp.loops.finish import LoopReport as LoopReport
