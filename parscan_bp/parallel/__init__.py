"""More than one device: process grids, divided layers, and what they send."""

from parscan_bp.devices.launch import launch as launch
from parscan_bp.devices.stats import collective_stats as collective_stats
from parscan_bp.grids.cost.model import CORI_KNL as CORI_KNL
from parscan_bp.grids.cost.model import CostModel as CostModel
from parscan_bp.grids.cost.model import measure_alpha_beta as measure_alpha_beta
from parscan_bp.grids.cost.plan import GridPlan as GridPlan
from parscan_bp.grids.cost.plan import explain_grid as explain_grid
from parscan_bp.grids.cost.search import best_grid as best_grid
from parscan_bp.grids.grid import Grid as Grid
from parscan_bp.grids.layers.base import DataParallel as DataParallel
from parscan_bp.grids.layers.batch_norm import SyncBatchNorm as SyncBatchNorm
from parscan_bp.grids.layers.domain import DomainParallel as DomainParallel
from parscan_bp.grids.layers.model import ModelParallel as ModelParallel
from parscan_bp.grids.layers.redistribute import Redistribute as Redistribute
from parscan_bp.grids.layout import Layout as Layout
from parscan_bp.grids.layout import Split as Split
from parscan_bp.grids.stack import Stack as Stack
from parscan_bp.grids.stack import divide as divide
