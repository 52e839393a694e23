"""Recurrent cells with analytic Jacobians, for `parscan_bp.scan`."""

from parscan_bp.cells.base import Cell as Cell
from parscan_bp.cells.diagonal import LRU as LRU
from parscan_bp.cells.diagonal import MinGRU as MinGRU
from parscan_bp.cells.elman import Elman as Elman
from parscan_bp.cells.gated import Gated as Gated
from parscan_bp.cells.gru import GRU as GRU
from parscan_bp.cells.lstm import LSTM as LSTM
from parscan_bp.cells.view import View as View

__all__ = ["GRU", "LRU", "LSTM", "Cell", "Elman", "Gated", "MinGRU", "View"]
