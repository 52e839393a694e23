"""The structure of a step's Jacobian, read from its jaxpr: nothing is run, nothing is guessed."""

from parscan_bp.structure.axes import find_structure as find_structure
from parscan_bp.structure.base import CarryStructure as CarryStructure
from parscan_bp.structure.base import Reason as Reason
from parscan_bp.structure.check import check_structure as check_structure
from parscan_bp.structure.holomorphic import is_holomorphic as is_holomorphic
from parscan_bp.structure.unsupported import ALONG_MAPPED_AXIS as ALONG_MAPPED_AXIS
from parscan_bp.structure.unsupported import couples_mapped_axis as couples_mapped_axis
from parscan_bp.structure.unsupported import underivable as underivable
from parscan_bp.structure.unsupported import unsupported as unsupported

__all__ = [
    "ALONG_MAPPED_AXIS",
    "CarryStructure",
    "Reason",
    "check_structure",
    "couples_mapped_axis",
    "find_structure",
    "is_holomorphic",
    "underivable",
    "unsupported",
]
