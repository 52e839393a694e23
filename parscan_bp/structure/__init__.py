"""The structure of a step's Jacobian, read from its jaxpr: nothing is run, nothing is guessed."""

from parscan_bp.structure.arithmetic import is_arithmetic as is_arithmetic
from parscan_bp.structure.arithmetic import is_elementwise as is_elementwise
from parscan_bp.structure.arithmetic import is_move as is_move
from parscan_bp.structure.axes import find_structure as find_structure
from parscan_bp.structure.base import CarryStructure as CarryStructure
from parscan_bp.structure.base import Reason as Reason
from parscan_bp.structure.check import check_structure as check_structure
from parscan_bp.structure.dependence import dependencies as dependencies
from parscan_bp.structure.dependence import forwarded as forwarded
from parscan_bp.structure.holomorphic import is_holomorphic as is_holomorphic
from parscan_bp.structure.jaxprs import scan_counts as scan_counts
from parscan_bp.structure.obstacles import check_no_obstacle as check_no_obstacle
from parscan_bp.structure.obstacles import explicit_sharding as explicit_sharding
from parscan_bp.structure.obstacles import replicated_output as replicated_output
from parscan_bp.structure.obstacles import symbolic_size as symbolic_size
from parscan_bp.structure.outer_gates import has_outer_gates as has_outer_gates
from parscan_bp.structure.unsupported import ALONG_MAPPED_AXIS as ALONG_MAPPED_AXIS
from parscan_bp.structure.unsupported import couples_mapped_axis as couples_mapped_axis
from parscan_bp.structure.unsupported import unsupported as unsupported
from parscan_bp.structure.work import Work as Work
from parscan_bp.structure.work import work_of as work_of

__all__ = [
    "ALONG_MAPPED_AXIS",
    "CarryStructure",
    "Reason",
    "Work",
    "check_no_obstacle",
    "check_structure",
    "couples_mapped_axis",
    "dependencies",
    "explicit_sharding",
    "find_structure",
    "forwarded",
    "has_outer_gates",
    "is_arithmetic",
    "is_elementwise",
    "is_holomorphic",
    "is_move",
    "replicated_output",
    "scan_counts",
    "symbolic_size",
    "unsupported",
    "work_of",
]
