"""A scan whose derivatives are a solver's: a loop over equal steps."""

from parscan_bp.scan.api import scan as scan
from parscan_bp.scan.fused import Fused as Fused
from parscan_bp.scan.reverse import custom_vjp_scan as custom_vjp_scan

__all__ = ["Fused", "custom_vjp_scan", "scan"]
