"""Which step, leaf and operation made a number that is not finite."""

from parscan_bp.diagnose.api import diagnose as diagnose
from parscan_bp.diagnose.diagnosis import Diagnosis as Diagnosis
from parscan_bp.diagnose.diagnosis import Fault as Fault
from parscan_bp.diagnose.diagnosis import Operation as Operation

__all__ = ["Diagnosis", "Fault", "Operation", "diagnose"]
