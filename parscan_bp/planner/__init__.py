"""Which products of a ragged system pay: schedules, their costs, and the search for the best."""

from parscan_bp.planner.machine import CPU as CPU
from parscan_bp.planner.machine import FLOPS as FLOPS
from parscan_bp.planner.machine import Machine as Machine
from parscan_bp.planner.outlook import Outlook as Outlook
from parscan_bp.planner.outlook import ProductStep as ProductStep
from parscan_bp.planner.plan import Plan as Plan
from parscan_bp.planner.plan import plan as plan
from parscan_bp.planner.schedule import ProductOrder as ProductOrder
from parscan_bp.planner.schedule import blelloch as blelloch
from parscan_bp.planner.schedule import linear as linear
from parscan_bp.planner.schedule import run_order as run_order
from parscan_bp.planner.table import ChainProblem as ChainProblem

__all__ = [
    "CPU",
    "FLOPS",
    "ChainProblem",
    "Machine",
    "Outlook",
    "Plan",
    "ProductOrder",
    "ProductStep",
    "blelloch",
    "linear",
    "plan",
    "run_order",
]
