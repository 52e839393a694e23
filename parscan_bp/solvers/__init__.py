"""Solvers of block bi-diagonal systems."""

from parscan_bp.solvers.associative import Associative as Associative
from parscan_bp.solvers.base import Complexity as Complexity
from parscan_bp.solvers.base import Solver as Solver
from parscan_bp.solvers.base import TreeSolver as TreeSolver
from parscan_bp.solvers.base import check_solver as check_solver
from parscan_bp.solvers.blelloch import Blelloch as Blelloch
from parscan_bp.solvers.chunked import Chunked as Chunked
from parscan_bp.solvers.pallas import Pallas as Pallas
from parscan_bp.solvers.planned import Planned as Planned
from parscan_bp.solvers.sharded import Sharded as Sharded
from parscan_bp.solvers.sweep import Sweep as Sweep

__all__ = [
    "Associative",
    "Blelloch",
    "Chunked",
    "Complexity",
    "Pallas",
    "Planned",
    "Sharded",
    "Solver",
    "Sweep",
    "TreeSolver",
    "check_solver",
]
