"""Speedup of parscan_bp.scan over the tuned jax.lax.scan on a grid of cells and sizes.

The baseline is jitted `jax.lax.scan` with its best unroll factor, found for every program by a
quick measurement; parscan_bp.scan takes the same factor. A speedup above 1 says that parscan_bp
is faster.

    python -m bench scan --record                       the whole grid
    python -m bench scan --record --resume              goes on where it stopped
    python -m bench scan --confirm FILE.json --record   measures again what was too slow
    python -m bench scan --report FILE.json [SECOND.json]
"""

from bench.grids import workloads
from bench.grids.scan import figures, point, report
from bench.shared import candidates, timing
from bench.shared.bench import Bench, Listed, Option, Options, Result, check_same, racing


def points(options: Options) -> dict[str, point.Task]:
    """The grid, every solver and mode at each point."""
    sizes = workloads.points(options)
    return {k: point.Task(size, options.solvers, options.modes) for k, size in sizes.items()}


def again(result: Result, options: Options) -> dict[str, point.Task]:
    """The points of a file that were too slow, with only the solvers and modes that were."""
    check_same(result, vars(options), ["wrt"], options.confirm)
    slow = report.too_slow(result)
    tasks = {}
    for size in sorted({lane.size for lane in slow}):
        own = [lane for lane in slow if lane.size == size]
        solvers = dict.fromkeys(lane.solver for lane in own)
        modes = dict.fromkeys(lane.mode for lane in own)
        tasks[str(size)] = point.Task(size, tuple(solvers), tuple(modes))
    return tasks


BENCH = Bench(
    "scan",
    __doc__,
    baseline="jitted jax.lax.scan with its best unroll factor",
    points=points,
    measure=point.measure,
    rows=Listed("points", lambda entry: str(workloads.Size.of(entry))),
    text=report.text,
    options=(
        Option("cells", list(workloads.CELLS), choices=workloads.CELLS),
        *(Option("H", [1, 4, 20, 64, 256]), Option("B", [1, 16]), Option("T", [100, 1000, 10000])),
        Option("modes", [timing.VALUE_AND_GRAD, timing.BACKWARD, "jvp", "hvp"], "", point.MODES),
        Option(
            "solvers",
            [candidates.AUTO],
            "ours by name; or lax.scan with a checkpointed body, which is never judged",
            candidates.RIVALS,
        ),
        Option(
            "wrt",
            workloads.PARAMETERS,
            "differentiate parameters only, or the first carry and the inputs too",
            (workloads.PARAMETERS, workloads.EVERYTHING),
        ),
        Option("unrolls", [1, 2, 4, 8], "of lax.scan, the fastest is taken"),
        Option("memory-limit", 2e9, "bytes of one program"),
        Option("seed", 0),
        *racing(seconds=60.0),
    ),
    quick={"cells": ["elman"], "H": [2], "B": [2], "T": [6], "unrolls": [1]},
    draw=figures.draw,
    fixed=("seed", "wrt", "solvers", "modes"),
    again=again,
)
