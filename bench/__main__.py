"""`python -m bench` lists the measurements, `python -m bench NAME [options]` runs one."""

import ast
import importlib
import importlib.util
import os
import pathlib
import sys
from collections.abc import Sequence

# A new measurement is one file with a `BENCH` (see `bench.shared.bench`) and one row here; its
# docstring's first line is what the list shows. It is imported when it is named: not all need the
# same extras. `gpu`, whose points share a time, `paper` and `tables` have a `main(argv)`.
BENCHES = {
    "rnn": "bench.paper.recurrent.rnn",
    "scan": "bench.grids.scan.bench",
    "steps": "bench.grids.steps.bench",
    "compile": "bench.grids.compile",
    "forward": "bench.grids.forward.bench",
    "scaled": "bench.grids.scaled",
    "memory": "bench.grids.memory",
    "loops": "bench.grids.loops",
    "peers": "bench.grids.peers",
    "roofline": "bench.grids.roofline",
    "others": "bench.others.bench",
    "mesh": "bench.grids.mesh.bench",
    "convergence": "bench.paper.convergence",
    "lenet": "bench.paper.images.lenet",
    "vgg11": "bench.paper.vgg11.bench",
    "grids": "bench.paper.grids.bench",
    "jacobians": "bench.paper.jacobians",
    "spgemm": "bench.paper.spgemm",
    "reuse": "bench.paper.reuse",
    "solvers": "bench.paper.solvers",
    "truncated": "bench.paper.truncated",
    "flax": "bench.grids.flax.bench",
    "gru": "bench.paper.recurrent.gru",
    "pipeline": "bench.paper.pipeline.bench",
    "residual": "bench.paper.pipeline.residual",
    "delays": "bench.paper.pipeline.delays",
    "rate": "bench.paper.rate",
    "executors": "bench.paper.executors.bench",
    "gpu": "bench.gpu",
    "paper": "bench.paper.claims.bench",
    "tables": "bench.tables",
}


def listing() -> str:
    """One line for each measurement."""
    width = max(map(len, BENCHES))
    lines = [f"  {name:<{width}}  {_summary(module)}" for name, module in BENCHES.items()]
    return "\n".join(["usage: python -m bench NAME [options]", "", *lines])


def main(argv: Sequence[str]) -> None:
    """Runs the measurement that `argv[0]` names with the options that follow it."""
    if not argv or argv[0] in ("-h", "--help"):
        print(listing())
        return
    os.environ["PARSCAN_BP_WISDOM"] = "off"  # the rules are measured, not what was
    name, *options = argv
    if name not in BENCHES:
        raise SystemExit(f"unknown measurement {name!r}\n\n{listing()}")
    module = importlib.import_module(BENCHES[name])
    getattr(module, "BENCH", module).main(options)


def _summary(module: str) -> str:
    found = importlib.util.find_spec(module)
    assert found is not None and found.origin is not None, module
    documentation = ast.get_docstring(ast.parse(pathlib.Path(found.origin).read_text()))
    return (documentation or "").splitlines()[0]


if __name__ == "__main__":
    main(sys.argv[1:])
