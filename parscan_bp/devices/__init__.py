"""The devices of a mesh axis, and what goes from one to another."""

from parscan_bp.devices.exclusive import METHODS as METHODS
from parscan_bp.devices.exclusive import AffineMap as AffineMap
from parscan_bp.devices.exclusive import cheapest as cheapest
from parscan_bp.devices.exclusive import exclusive_scan as exclusive_scan
from parscan_bp.devices.in_turn import in_turn as in_turn
from parscan_bp.devices.link import Link as Link
from parscan_bp.devices.link import Traffic as Traffic
from parscan_bp.devices.link import as_link as as_link
from parscan_bp.devices.link import known_link as known_link
from parscan_bp.devices.link import measure_link as measure_link
from parscan_bp.devices.mesh import check_axis as check_axis
from parscan_bp.devices.mesh import divided as divided
from parscan_bp.devices.mesh import find_mesh as find_mesh
from parscan_bp.devices.mesh import is_bound as is_bound
from parscan_bp.devices.order import DeviceOrder as DeviceOrder
from parscan_bp.devices.over_mesh import OverMesh as OverMesh
from parscan_bp.devices.place import HERE as HERE
from parscan_bp.devices.place import Place as Place

__all__ = [
    "HERE",
    "METHODS",
    "AffineMap",
    "DeviceOrder",
    "Link",
    "OverMesh",
    "Place",
    "Traffic",
    "as_link",
    "cheapest",
    "check_axis",
    "divided",
    "exclusive_scan",
    "find_mesh",
    "in_turn",
    "is_bound",
    "known_link",
    "measure_link",
]
