"""Speedup of parscan_bp.nnx.RNN over flax.nnx.RNN on a grid of cells and sizes.

Both layers hold the same cell, so the same parameters; gradients are checked equal first. What
is compared is what changing one import does: the baseline is Flax's layer as it comes, unroll=1
(`--unroll` gives both sides another factor). Beside the solver that ours chooses stands "kept",
which stores the linearised steps in the forward pass, as Flax's layer does.

The backward pass is the whole less the value alone ("gradient"), as in tables 4 to 6 of the
BPPSA paper, but with nothing set aside as overhead: so it does not matter whether a solver works
in the forward half of `jax.vjp`, storing what it needs, or in the other. Both halves are told,
too.

What a call takes beside its program is left out as far as it goes, or it would be most of a short
one: programs take and return lists of arrays, not Flax's states, run in the calling thread, and
the value alone hands out as many arrays as there are gradients.

With `--floor` the loop and the products that every gradient consists of, one step after the other,
are timed beside them (`flax_floor`).

    python -m bench flax --record
"""

import argparse
import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from tqdm import tqdm

import parscan_bp.nnx
from bench import (
    candidates,
    flax_floor,
    programs,
    record,
    scan_report,
    tables,
    timing,
    workloads,
)

CELLS = {
    kind.__name__: kind
    for kind in (nnx.SimpleCell, nnx.GRUCell, nnx.LSTMCell, nnx.OptimizedLSTMCell)
}
PROGRAMS = (timing.VALUE, timing.FORWARD, timing.VALUE_AND_GRAD)
PHASES = (timing.FORWARD, timing.BACKWARD, timing.GRADIENT, timing.VALUE_AND_GRAD)
FLOOR = "floor"
# What the interval of a speedup has to reach.
WANTED = {timing.VALUE_AND_GRAD: 0.95, timing.GRADIENT: 1.5}


def main(argv: Sequence[str]) -> None:
    """Measures the grid, writes JSON after every point, prints a table and what is too slow.

    Raises:
        FloatingPointError: gradients of the two layers differ at some point.
    """
    options = _parser().parse_args(argv)
    timing.call_inline()
    path = record.result_path(options)
    axes = itertools.product(options.T, options.B, options.H, options.cells)
    sizes = [workloads.Size(cell, h, b, t) for t, b, h, cell in axes]
    names = ("rounds", "min_rounds", "budget_seconds", "unroll", "seed")
    result: dict[str, Any] = {
        "runs": [record.environment(argv)],
        "settings": {name: getattr(options, name) for name in names},
        "points": [],
    }
    for size in tqdm(sizes, desc="points", unit="point"):
        result["points"].append(measure(size, options))
        result["runs"][-1]["load_end"] = record.load_average()
        record.write(path, result)
    print(text(result))


def _parser() -> argparse.ArgumentParser:
    shared = record.output_options("flax")
    parser = argparse.ArgumentParser("python -m bench flax", parents=[shared])
    parser.add_argument("--cells", nargs="+", choices=tuple(CELLS), default=tuple(CELLS))
    parser.add_argument("--H", nargs="+", type=int, default=[4, 20, 64])
    parser.add_argument("--B", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--T", nargs="+", type=int, default=[100, 1000])
    solvers = tuple(candidates.SOLVERS)
    parser.add_argument("--solvers", nargs="+", choices=solvers, default=[candidates.AUTO, "kept"])
    parser.add_argument("--floor", action="store_true", help="times its loop and products alone")
    parser.add_argument("--unroll", type=int, default=1, help="of both layers")
    parser.add_argument("--rounds", type=int, default=25, help="at most, for each point")
    parser.add_argument("--min-rounds", type=int, default=15, help="at least, whatever the budget")
    parser.add_argument("--budget-seconds", type=float, default=20.0, help="for one point's rounds")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def measure(size: workloads.Size, options: argparse.Namespace) -> dict[str, Any]:
    """Checks and times Flax's layer and ours, by each solver, at one point of the grid.

    Raises:
        FloatingPointError: their gradients differ.
    """
    cell = CELLS[size.cell](size.hidden, size.hidden, rngs=nnx.Rngs(options.seed))
    layer = nnx.RNN(cell, unroll=options.unroll)
    point = jax.tree.leaves(nnx.state(layer, nnx.Param))
    data = _data(layer, size, options.seed)
    baseline = _programs(layer, point, data)
    wanted = baseline[timing.VALUE_AND_GRAD]
    moved = wanted.run(programs.one_ulp_up(point), point, data)
    allowed = programs.tolerance(wanted.call(), moved, size.length * size.batch)
    rivals, errors = {}, {}
    for name in options.solvers:
        solver = candidates.SOLVERS[name]
        ours = parscan_bp.nnx.RNN(cell, unroll=options.unroll, solver=solver)
        rivals[name] = _programs(ours, point, data)
        got = rivals[name][timing.VALUE_AND_GRAD].call()
        errors[name] = programs.check_equal(wanted.call(), got, allowed, f"{size}: {name}: ")
    racing = {name: programs.calls(rival) for name, rival in rivals.items()}
    if options.floor:
        racing[FLOOR] = {timing.GRADIENT: flax_floor.program(size, options.seed).call}
    outcome = timing.race(
        programs.calls(baseline),
        racing,
        rounds=options.rounds,
        min_rounds=min(options.min_rounds, options.rounds),
        budget=options.budget_seconds,
    )
    floor = {FLOOR: outcome.compare(FLOOR, timing.GRADIENT).to_json()} if options.floor else {}
    return {
        **dataclasses.asdict(size),
        **floor,
        "tolerance": allowed,
        "flax": programs.to_json(baseline),
        "solvers": {
            name: {
                "error": errors[name],
                "phases": {phase: outcome.compare(name, phase).to_json() for phase in PHASES},
                "programs": programs.to_json(rival),
            }
            for name, rival in rivals.items()
        },
    }


def _data(layer: nnx.RNN, size: workloads.Size, seed: int) -> dict[str, Any]:
    """Inputs (B, T, H), the first carry, and weights for every output and the last carry."""
    keys = jax.random.split(jax.random.key(seed), 2)
    inputs = jax.random.normal(keys[0], (size.batch, size.length, size.hidden), jnp.float32)
    carry = layer.cell.initialize_carry((size.batch, size.hidden), nnx.Rngs(seed))
    outputs = _run(layer, inputs, carry)
    return {
        "inputs": inputs,
        "carry": carry,
        "weights": workloads.draw_weights(keys[1], outputs),
    }


def _run(layer: nnx.RNN, inputs: jax.Array, carry: Any) -> Any:
    return layer(inputs, initial_carry=carry, return_carry=True)


def _programs(layer: nnx.RNN, point: Any, data: Any) -> dict[str, programs.Program]:
    """The programs of the layer as functions of its parameters, as a list of leaves."""
    graph, parameters, rest = nnx.split(layer, nnx.Param, ...)
    tree = jax.tree.structure(parameters)

    def loss(point: Any, data: Any) -> jax.Array:
        layer = nnx.merge(graph, jax.tree.unflatten(tree, point), rest)
        return workloads.weigh(data["weights"], _run(layer, data["inputs"], data["carry"]))

    made = programs.derivatives(loss)
    return {name: programs.build(made[name], point, point, data) for name in PROGRAMS}


def text(result: dict[str, Any]) -> str:
    """A line for each point and solver: speedups with intervals; then those that are too slow."""
    header = ["point", "solver", *PHASES, "A/A", "temp ours/flax"]
    rows, missed = [], []
    for point in result["points"]:
        size = scan_report.size_of(point)
        theirs = tables.size(point["flax"][timing.VALUE_AND_GRAD]["temp_bytes"])
        for solver, entry in point["solvers"].items():
            phases = entry["phases"]
            ours = tables.size(entry["programs"][timing.VALUE_AND_GRAD]["temp_bytes"])
            speedups = [scan_report.range_of(comparison) for comparison in phases.values()]
            again = f"{phases[timing.VALUE_AND_GRAD]['again']:.2f}"
            rows.append([str(size), solver, *speedups, again, f"{ours}/{theirs}"])
            missed += [
                f"  {size}, {solver}: {phase} {phases[phase]['speedup']:.2f}, wanted {limit}"
                for phase, limit in WANTED.items()
                if phases[phase]["high"] < limit
                and (phase not in timing.REST or scan_report.is_resolved(phases[phase]))
            ]
    count = f"{len(missed)} speedups whose whole interval misses what is wanted"
    most = [
        f"  {scan_report.size_of(point)}: {scan_report.range_of(point[FLOOR])}"
        for point in result["points"]
        if FLOOR in point
    ]
    title = ["", "gradient of Flax's layer over the loop and the products alone", *most]
    return "\n".join([tables.table(header, rows), "", count, *missed, *(title if most else [])])
