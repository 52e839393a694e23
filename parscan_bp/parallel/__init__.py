"""More than one device: scans and layers divided over them, what they send, launching.

`divide` puts a stack of layers on process grids (batch, model, domain), `best_grid` chooses them,
and `explain_grid` says what they send and hold; a `Link` is what they reckon with.

`parscan_bp.Sharded` is the solver. Inside `jax.shard_map` and `jax.pmap` it differentiates as JAX's
own collectives do: the last carry, which all devices have, is a ``psum``. Where types say what
differs from device to device (`jax.shard_map`), gradients are those of the whole program. In
`jax.pmap` and with ``check_vma=False``, `jax.grad` of a loss on each device is the gradient of
their sum over the devices: a loss of the last carry counts P times, unless it is divided by P, and
the gradient of what all devices share is to be summed over them.
"""

from parscan_bp.devices import Link as Link
from parscan_bp.devices import measure_link as measure_link
from parscan_bp.parallel.grids.cost.plan import GridPlan as GridPlan
from parscan_bp.parallel.grids.cost.plan import explain_grid as explain_grid
from parscan_bp.parallel.grids.cost.search import best_grid as best_grid
from parscan_bp.parallel.grids.grid import Grid as Grid
from parscan_bp.parallel.grids.layers.base import DataParallel as DataParallel
from parscan_bp.parallel.grids.layers.batch_norm import SyncBatchNorm as SyncBatchNorm
from parscan_bp.parallel.grids.layers.domain import DomainParallel as DomainParallel
from parscan_bp.parallel.grids.layers.model import ModelParallel as ModelParallel
from parscan_bp.parallel.grids.layers.redistribute import Redistribute as Redistribute
from parscan_bp.parallel.grids.layout import Layout as Layout
from parscan_bp.parallel.grids.layout import Split as Split
from parscan_bp.parallel.grids.stack import Stack as Stack
from parscan_bp.parallel.grids.stack import divide as divide
from parscan_bp.parallel.launch import LaunchError as LaunchError
from parscan_bp.parallel.launch import launch as launch
from parscan_bp.parallel.stats import Collectives as Collectives
from parscan_bp.parallel.stats import collective_stats as collective_stats

__all__ = [
    "DataParallel",
    "DomainParallel",
    "Grid",
    "GridPlan",
    "LaunchError",
    "Link",
    "ModelParallel",
    "Stack",
    "SyncBatchNorm",
    "best_grid",
    "collective_stats",
    "divide",
    "explain_grid",
    "launch",
    "measure_link",
]
