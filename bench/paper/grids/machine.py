"""The machine of Gholami et al. 2018, Table 1: NERSC's Cori, Intel KNL."""

from parscan_bp.grids.cost.paper import Paper
from parscan_bp.grids.cost.program import SentBytes
from parscan_bp.parallel import Link

CORI_KNL = Link(latency=2e-6, bandwidth=6e9)
EQUATIONS, PROGRAM = Paper.of(CORI_KNL), SentBytes.of(CORI_KNL)
"""Equations 3 to 9, and what compiled programs send, on it."""
