"""A scan whose derivatives are a solver's: a loop over equal steps."""

from parscan_bp.scan.api import scan as scan
from parscan_bp.scan.custom_vjp import custom_vjp_scan as custom_vjp_scan
from parscan_bp.scan.values.kernels import Fused as Fused

__all__ = ["Fused", "custom_vjp_scan", "scan"]
