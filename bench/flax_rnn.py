"""Speedup of parscan_bp.nnx.RNN over flax.nnx.RNN on a grid of cells and sizes.

Both layers hold the same cell, so the same parameters; gradients are checked equal first. What
is compared is what changing one import does: the baseline is Flax's layer as it comes, unroll=1
(`--unroll` gives both sides another factor).

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
from bench import programs, record, scan_report, tables, timing, workloads

CELLS = {
    kind.__name__: kind
    for kind in (nnx.SimpleCell, nnx.GRUCell, nnx.LSTMCell, nnx.OptimizedLSTMCell)
}
OURS = "parscan_bp"
PHASES = (timing.FORWARD, timing.BACKWARD, timing.VALUE_AND_GRAD)
# What the interval of a speedup has to reach.
WANTED = {timing.VALUE_AND_GRAD: 0.95, timing.BACKWARD: 1.5}


def main(argv: Sequence[str]) -> None:
    """Measures the grid, writes JSON after every point, prints a table and what is too slow.

    Raises:
        FloatingPointError: gradients of the two layers differ at some point.
    """
    options = _parser().parse_args(argv)
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
    parser.add_argument("--unroll", type=int, default=1, help="of both layers")
    parser.add_argument("--rounds", type=int, default=25, help="at most, for each point")
    parser.add_argument("--min-rounds", type=int, default=15, help="at least, whatever the budget")
    parser.add_argument("--budget-seconds", type=float, default=20.0, help="for one point's rounds")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def measure(size: workloads.Size, options: argparse.Namespace) -> dict[str, Any]:
    """Checks and times both layers at one point of the grid.

    Raises:
        FloatingPointError: their gradients differ.
    """
    cell = CELLS[size.cell](size.hidden, size.hidden, rngs=nnx.Rngs(options.seed))
    theirs = nnx.RNN(cell, unroll=options.unroll)
    ours = parscan_bp.nnx.RNN(cell, unroll=options.unroll)
    point = nnx.state(theirs, nnx.Param)
    data = _data(theirs, size, options.seed)
    sides = [_programs(layer, point, data) for layer in (theirs, ours)]
    wanted, got = (side[timing.VALUE_AND_GRAD] for side in sides)
    moved = wanted.run(programs.one_ulp_up(point), point, data)
    allowed = programs.tolerance(wanted.call(), moved, size.length * size.batch)
    error = programs.check_equal(wanted.call(), got.call(), allowed, f"{size}: ")
    calls = [{name: program.call for name, program in side.items()} for side in sides]
    outcome = timing.race(
        calls[0],
        {OURS: calls[1]},
        rounds=options.rounds,
        min_rounds=min(options.min_rounds, options.rounds),
        budget=options.budget_seconds,
    )
    return {
        **dataclasses.asdict(size),
        "error": error,
        "tolerance": allowed,
        "phases": {phase: outcome.compare(OURS, phase).to_json() for phase in PHASES},
        "programs": {
            name: {phase: program.to_json() for phase, program in side.items()}
            for name, side in zip(("flax", OURS), sides, strict=True)
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
    """Both programs of the layer as functions of its parameters."""
    graph, _, rest = nnx.split(layer, nnx.Param, ...)

    def loss(point: Any, data: Any) -> jax.Array:
        layer = nnx.merge(graph, point, rest)
        return workloads.weigh(data["weights"], _run(layer, data["inputs"], data["carry"]))

    made = programs.derivatives(loss)
    names = (timing.FORWARD, timing.VALUE_AND_GRAD)
    return {name: programs.build(made[name], point, point, data) for name in names}


def text(result: dict[str, Any]) -> str:
    """A line for each point: speedups with intervals; then the points that miss what is wanted."""
    header = ["point", *PHASES, "A/A", "temp ours/flax"]
    rows, missed = [], []
    for point in result["points"]:
        size, phases = scan_report.size_of(point), point["phases"]
        speedups = [scan_report.range_of(e) for e in phases.values()]
        whole = phases[timing.VALUE_AND_GRAD]
        bytes_ = [
            tables.size(point["programs"][side][timing.VALUE_AND_GRAD]["temp_bytes"])
            for side in (OURS, "flax")
        ]
        rows.append([str(size), *speedups, f"{whole['again']:.2f}", "/".join(bytes_)])
        missed += [
            f"  {size}: {phase} {phases[phase]['speedup']:.2f}, wanted {limit}"
            for phase, limit in WANTED.items()
            if phases[phase]["high"] < limit
            and (phase != timing.BACKWARD or scan_report.is_resolved(phases[phase]))
        ]
    count = f"{len(missed)} speedups whose whole interval misses what is wanted"
    return "\n".join([tables.table(header, rows), "", count, *missed])
