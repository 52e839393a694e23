"""The forward pass in parallel: methods that evaluate a nonlinear recurrence, and a certificate.

The methods are public as `parscan_bp.Chunks` and so on; here is what one of your own is made of.
"""

from parscan_bp.forward.base import Forward as Forward
from parscan_bp.forward.base import Recurrence as Recurrence
from parscan_bp.forward.base import Trajectory as Trajectory
from parscan_bp.forward.certified import Auto as Auto
from parscan_bp.forward.chunks import Chunks as Chunks
from parscan_bp.forward.exponent import Forgetting as Forgetting
from parscan_bp.forward.exponent import forgetting as forgetting
from parscan_bp.forward.fixed_point import FixedPoint as FixedPoint
from parscan_bp.forward.frozen import FrozenActivations as FrozenActivations
from parscan_bp.forward.newton import Newton as Newton
from parscan_bp.forward.report import ForwardReport as ForwardReport

__all__ = [
    "Auto",
    "Forward",
    "Recurrence",
    "Trajectory",
]
