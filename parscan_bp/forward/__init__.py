"""The forward pass in parallel: methods that evaluate a recurrence, and what certifies them."""

from parscan_bp.forward.base import Forward as Forward
from parscan_bp.forward.base import Recurrence as Recurrence
from parscan_bp.forward.base import Trajectory as Trajectory
from parscan_bp.forward.chunks import Chunks as Chunks
from parscan_bp.forward.report import ForwardReport as ForwardReport

__all__ = ["Chunks", "Forward", "ForwardReport", "Recurrence", "Trajectory"]
