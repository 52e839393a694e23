"""The forward pass in parallel: methods that evaluate a nonlinear recurrence, and a certificate."""

from parscan_bp.forward.base import Forward as Forward
from parscan_bp.forward.base import Recurrence as Recurrence
from parscan_bp.forward.base import Trajectory as Trajectory

__all__ = ["Forward", "Recurrence", "Trajectory"]
