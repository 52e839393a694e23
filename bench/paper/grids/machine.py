"""The machine of Gholami et al. 2018, Table 1: NERSC's Cori, Intel KNL."""

from bench.paper.grids.equations import Paper
from parscan_bp.parallel import Link
from parscan_bp.parallel.grids.cost.program import SentBytes

CORI_KNL = Link(latency=2e-6, bandwidth=6e9)
EQUATIONS, PROGRAM = Paper.of(CORI_KNL), SentBytes.of(CORI_KNL)
"""Equations 3 to 9, and what compiled programs send, on it."""
