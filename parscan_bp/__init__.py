"""Back-propagation as the solution of a bi-diagonal system, and so a scan."""

from parscan_bp import cells as cells
from parscan_bp import layers as layers
from parscan_bp import operators as operators
from parscan_bp import parallel as parallel
from parscan_bp import solvers as solvers
from parscan_bp.chain import chain as chain
from parscan_bp.chain import layer_cotangents as layer_cotangents
from parscan_bp.explain import explain as explain
from parscan_bp.explain import explain_chain as explain_chain
from parscan_bp.report import Report as Report
from parscan_bp.report import Status as Status
from parscan_bp.scan import Fused as Fused
from parscan_bp.scan import custom_vjp_scan as custom_vjp_scan
from parscan_bp.scan import scan as scan
from parscan_bp.solve import solve as solve
from parscan_bp.solvers import Associative as Associative
from parscan_bp.solvers import Blelloch as Blelloch
from parscan_bp.solvers import Chunked as Chunked
from parscan_bp.solvers import Pallas as Pallas
from parscan_bp.solvers import Planned as Planned
from parscan_bp.solvers import Sharded as Sharded
from parscan_bp.solvers import Sweep as Sweep
from parscan_bp.system import Ragged as Ragged
from parscan_bp.system import Uniform as Uniform
from parscan_bp.tuning import Tuning as Tuning
from parscan_bp.tuning import autotune as autotune

__all__ = [
    "Associative",
    "Blelloch",
    "Chunked",
    "Fused",
    "Pallas",
    "Planned",
    "Ragged",
    "Report",
    "Sharded",
    "Status",
    "Sweep",
    "Tuning",
    "Uniform",
    "autotune",
    "cells",
    "chain",
    "custom_vjp_scan",
    "explain",
    "explain_chain",
    "layer_cotangents",
    "layers",
    "operators",
    "parallel",
    "scan",
    "solve",
    "solvers",
]
