"""Differentiation rules: from a traced program to a bi-diagonal system and back."""

from parscan_bp.autodiff.chain import chain as chain
from parscan_bp.autodiff.chain import layer_cotangents as layer_cotangents
from parscan_bp.autodiff.fused import Fused as Fused
from parscan_bp.autodiff.reverse import custom_vjp_scan as custom_vjp_scan
from parscan_bp.autodiff.scan import scan as scan
from parscan_bp.autodiff.solve import solve as solve
from parscan_bp.autodiff.within import solve_within as solve_within

__all__ = ["Fused", "chain", "custom_vjp_scan", "layer_cotangents", "scan", "solve", "solve_within"]
