"""The forward pass in parallel: methods that evaluate a nonlinear recurrence, and a certificate."""

from parscan_bp.forward.base import Forward as Forward
from parscan_bp.forward.base import Recurrence as Recurrence
from parscan_bp.forward.base import Trajectory as Trajectory
from parscan_bp.forward.fixed_point import FixedPoint as FixedPoint
from parscan_bp.forward.frozen import FrozenActivations as FrozenActivations
from parscan_bp.forward.newton import Newton as Newton

__all__ = ["FixedPoint", "Forward", "FrozenActivations", "Newton", "Recurrence", "Trajectory"]
