"""GPU kernels of the scan and their references: arrays in, arrays out.

A module here is loaded when a name of it is first used. Mosaic GPU takes as long to import as all
the rest, is of no use on a CPU, and is not a stable part of JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parscan_bp.kernels.compat import interpreter as interpreter
    from parscan_bp.kernels.compat import missing as missing
    from parscan_bp.kernels.compat import unusable as unusable
    from parscan_bp.kernels.fused import check_hidden as check_hidden
    from parscan_bp.kernels.fused import fused_recurrence as fused_recurrence
    from parscan_bp.kernels.scan import check_size as check_size
    from parscan_bp.kernels.scan import dense_scan as dense_scan
    from parscan_bp.kernels.scan import diagonal_scan as diagonal_scan
    from parscan_bp.kernels.scan import factored_scan as factored_scan
    from parscan_bp.kernels.scan import weighted_scan as weighted_scan
    from parscan_bp.kernels.tiles import MAX_LANES_SIZE as MAX_LANES_SIZE
    from parscan_bp.kernels.tiles import MAX_SIZE as MAX_SIZE
    from parscan_bp.kernels.tiles import columns_fit as columns_fit
    from parscan_bp.kernels.tiles import factored_fits as factored_fits

_MODULES = {
    "MAX_LANES_SIZE": "tiles",
    "MAX_SIZE": "tiles",
    "check_hidden": "fused",
    "check_size": "scan",
    "columns_fit": "tiles",
    "dense_scan": "scan",
    "diagonal_scan": "scan",
    "factored_fits": "tiles",
    "factored_scan": "scan",
    "fused_recurrence": "fused",
    "interpreter": "compat",
    "missing": "compat",
    "unusable": "compat",
    "weighted_scan": "scan",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
