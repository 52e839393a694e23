"""Back-propagation as the solution of a bi-diagonal system, and so a scan."""

import importlib
import importlib.metadata
from typing import TYPE_CHECKING, Any

from parscan_bp import cells as cells
from parscan_bp import forward as forward
from parscan_bp import layers as layers
from parscan_bp import operators as operators
from parscan_bp import solvers as solvers
from parscan_bp.chain import chain as chain
from parscan_bp.chain import layer_cotangents as layer_cotangents
from parscan_bp.deep_rnn import deep_rnn as deep_rnn
from parscan_bp.diagnose import Diagnosis as Diagnosis
from parscan_bp.diagnose import diagnose as diagnose
from parscan_bp.explain import explain as explain
from parscan_bp.explain import explain_chain as explain_chain
from parscan_bp.forward import Chunks as Chunks
from parscan_bp.forward import FixedPoint as FixedPoint
from parscan_bp.forward import ForwardReport as ForwardReport
from parscan_bp.forward import FrozenActivations as FrozenActivations
from parscan_bp.forward import Newton as Newton
from parscan_bp.graph import Node as Node
from parscan_bp.graph import explain_graph as explain_graph
from parscan_bp.graph import graph as graph
from parscan_bp.graph import init_graph as init_graph
from parscan_bp.installation import Installation as Installation
from parscan_bp.installation import check_installation as check_installation
from parscan_bp.loops import LoopReport as LoopReport
from parscan_bp.loops import while_loop as while_loop
from parscan_bp.memory_limit import MemoryLimit as MemoryLimit
from parscan_bp.report import Report as Report
from parscan_bp.report import Status as Status
from parscan_bp.scan import Fused as Fused
from parscan_bp.scan import custom_vjp_scan as custom_vjp_scan
from parscan_bp.scan import scan as scan
from parscan_bp.solve import solve as solve
from parscan_bp.solvers import Associative as Associative
from parscan_bp.solvers import BiCGStab as BiCGStab
from parscan_bp.solvers import Blelloch as Blelloch
from parscan_bp.solvers import Chunked as Chunked
from parscan_bp.solvers import ChunkedCorrections as ChunkedCorrections
from parscan_bp.solvers import CyclicReduction as CyclicReduction
from parscan_bp.solvers import Jacobi as Jacobi
from parscan_bp.solvers import Pallas as Pallas
from parscan_bp.solvers import Planned as Planned
from parscan_bp.solvers import Richardson as Richardson
from parscan_bp.solvers import Sharded as Sharded
from parscan_bp.solvers import Sweep as Sweep
from parscan_bp.solvers import Truncated as Truncated
from parscan_bp.system import Ragged as Ragged
from parscan_bp.system import Uniform as Uniform
from parscan_bp.tuning import Tuning as Tuning
from parscan_bp.tuning import autotune as autotune
from parscan_bp.tuning import autotune_calls as autotune_calls
from parscan_bp.tuning import measure_machine as measure_machine
from parscan_bp.within import diagnose_within as diagnose_within
from parscan_bp.within import explain_within as explain_within
from parscan_bp.within import replace_scans as replace_scans

if TYPE_CHECKING:
    from parscan_bp import linen as linen
    from parscan_bp import nnx as nnx
    from parscan_bp import parallel as parallel
    from parscan_bp import pipeline as pipeline
    from parscan_bp import plots as plots
    from parscan_bp import pruning as pruning

    __version__: str

__all__ = [
    "Associative",
    "BiCGStab",
    "Blelloch",
    "Chunked",
    "ChunkedCorrections",
    "Chunks",
    "CyclicReduction",
    "Diagnosis",
    "FixedPoint",
    "ForwardReport",
    "FrozenActivations",
    "Fused",
    "Installation",
    "Jacobi",
    "LoopReport",
    "MemoryLimit",
    "Newton",
    "Node",
    "Pallas",
    "Planned",
    "Ragged",
    "Report",
    "Richardson",
    "Sharded",
    "Status",
    "Sweep",
    "Truncated",
    "Tuning",
    "Uniform",
    "autotune",
    "autotune_calls",
    "cells",
    "chain",
    "check_installation",
    "custom_vjp_scan",
    "deep_rnn",
    "diagnose",
    "diagnose_within",
    "explain",
    "explain_chain",
    "explain_graph",
    "explain_within",
    "forward",
    "graph",
    "init_graph",
    "layer_cotangents",
    "layers",
    "measure_machine",
    "operators",
    "parallel",
    "pipeline",
    "pruning",
    "replace_scans",
    "scan",
    "solve",
    "solvers",
    "while_loop",
]
_LOADED_LATER = ("linen", "nnx", "parallel", "pipeline", "plots", "pruning")


def __getattr__(name: str) -> Any:
    """Loads what only some programs use, where it is first named: a third of the package.

    Of it `linen`, `nnx` and `plots` want other packages, and are not in ``__all__`` for that.
    """
    if name in _LOADED_LATER:
        return importlib.import_module(f"{__name__}.{name}")
    if name == "__version__":
        return importlib.metadata.version(__name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    own = {name for name in globals() if name.startswith("__")}
    return sorted({*own, "__version__", *__all__})
