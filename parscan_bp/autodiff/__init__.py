"""Differentiation rules: from a traced program to a bi-diagonal system and back."""

from parscan_bp.autodiff.fused import Fused as Fused
from parscan_bp.autodiff.scan import scan as scan
from parscan_bp.autodiff.within import solve_within as solve_within

__all__ = ["Fused", "scan", "solve_within"]
