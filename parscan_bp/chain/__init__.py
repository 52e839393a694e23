"""Layers of different sizes, one after the other, their derivatives a solver's."""

from parscan_bp.chain.api import chain as chain
from parscan_bp.chain.api import layer_cotangents as layer_cotangents

__all__ = ["chain", "layer_cotangents"]
