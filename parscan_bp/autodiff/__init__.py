"""Differentiation rules: from a traced program to a bi-diagonal system and back."""

from parscan_bp.autodiff.scan import scan as scan

__all__ = ["scan"]
