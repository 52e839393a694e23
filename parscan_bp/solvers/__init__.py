"""Solvers of block bi-diagonal systems: public as `parscan_bp.Sweep` and so on; here is what one of
your own is made of."""

from parscan_bp.solvers.associative import Associative as Associative
from parscan_bp.solvers.base import Complexity as Complexity
from parscan_bp.solvers.base import Solver as Solver
from parscan_bp.solvers.base import check_has_all_steps as check_has_all_steps
from parscan_bp.solvers.base import check_nothing_in_the_way as check_nothing_in_the_way
from parscan_bp.solvers.base import check_solver as check_solver
from parscan_bp.solvers.bicgstab import BiCGStab as BiCGStab
from parscan_bp.solvers.blelloch import Blelloch as Blelloch
from parscan_bp.solvers.chunked import Chunked as Chunked
from parscan_bp.solvers.chunked_corrections import ChunkedCorrections as ChunkedCorrections
from parscan_bp.solvers.cyclic_reduction import CyclicReduction as CyclicReduction
from parscan_bp.solvers.iterative import IterativeSolver as IterativeSolver
from parscan_bp.solvers.jacobi import Jacobi as Jacobi
from parscan_bp.solvers.pallas import Pallas as Pallas
from parscan_bp.solvers.planned import Planned as Planned
from parscan_bp.solvers.richardson import Richardson as Richardson
from parscan_bp.solvers.sharded import Sharded as Sharded
from parscan_bp.solvers.sweep import Sweep as Sweep
from parscan_bp.solvers.tree import TreeSolver as TreeSolver
from parscan_bp.solvers.truncated import Truncated as Truncated

__all__ = [
    "Complexity",
    "Solver",
    "TreeSolver",
]
