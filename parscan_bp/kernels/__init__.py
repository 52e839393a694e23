"""GPU kernels of the scan and their references: arrays in, arrays out."""

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
from parscan_bp.kernels.tiles import chunk_of as chunk_of
from parscan_bp.kernels.tiles import factored_fits as factored_fits
from parscan_bp.kernels.tiles import radices_of as radices_of
from parscan_bp.kernels.tuning import autotune as autotune

__all__ = [
    "MAX_LANES_SIZE",
    "autotune",
    "check_hidden",
    "check_size",
    "chunk_of",
    "dense_scan",
    "diagonal_scan",
    "factored_fits",
    "factored_scan",
    "fused_recurrence",
    "interpreter",
    "missing",
    "radices_of",
    "unusable",
    "weighted_scan",
]
