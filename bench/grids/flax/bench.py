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
are timed beside them (`floor`).

    python -m bench flax --record
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

import parscan_bp.nnx
from bench.grids import workloads
from bench.grids.flax import floor
from bench.shared import candidates, programs, tables, timing
from bench.shared.bench import Bench, Listed, Option, Options, Result, effort, racing

CELLS = {
    kind.__name__: kind
    for kind in (nnx.SimpleCell, nnx.GRUCell, nnx.LSTMCell, nnx.OptimizedLSTMCell)
}
PROGRAMS = (timing.VALUE, timing.FORWARD, timing.VALUE_AND_GRAD)
PHASES = (timing.FORWARD, timing.BACKWARD, timing.GRADIENT, timing.VALUE_AND_GRAD)
FLOOR = "floor"
# What the interval of a speedup has to reach.
WANTED = {timing.VALUE_AND_GRAD: 0.95, timing.GRADIENT: 1.5}


def measure(size: workloads.Size, options: Options) -> Result:
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
    lanes = {name: programs.calls(rival) for name, rival in rivals.items()}
    if options.floor:
        lanes[FLOOR] = {timing.GRADIENT: floor.program(size, options.seed).call}
    outcome = timing.race(programs.calls(baseline), lanes, **effort(options))
    least = {FLOOR: outcome.compare(FLOOR, timing.GRADIENT).to_json()} if options.floor else {}
    return {
        **dataclasses.asdict(size),
        **least,
        "tolerance": allowed,
        "flax": programs.to_json(baseline),
        "solvers": {
            name: {
                "error": errors[name],
                "phases": outcome.to_json(name, PHASES),
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


def text(result: Result) -> str:
    """A line for each point and solver: speedups with intervals; then those that are too slow."""
    header = ["point", "solver", *PHASES, "A/A", "temp ours/flax"]
    rows, missed, floors = [], [], []
    for point in result["points"]:
        size = workloads.Size.of(point)
        theirs = tables.size(point["flax"][timing.VALUE_AND_GRAD]["temp_bytes"])
        for solver, entry in point["solvers"].items():
            phases = entry["phases"]
            ours = tables.size(entry["programs"][timing.VALUE_AND_GRAD]["temp_bytes"])
            # The first records have no gradient by itself.
            speedups = [tables.resolved(phases[p]) if p in phases else "-" for p in PHASES]
            again = f"{phases[timing.VALUE_AND_GRAD]['again']:.2f}"
            rows.append([str(size), solver, *speedups, again, f"{ours}/{theirs}"])
            missed += [
                f"  {size}, {solver}: {phase} {phases[phase]['speedup']:.2f}, wanted {limit}"
                for phase, limit in WANTED.items()
                if phase in phases
                and phases[phase]["high"] < limit
                and (phase not in timing.REST or tables.is_resolved(phases[phase]))
            ]
        if FLOOR in point:
            floors.append(f"  {size}: {tables.resolved(point[FLOOR])}")
    count = f"{len(missed)} speedups whose whole interval misses what is wanted"
    title = ["", "gradient of Flax's layer over the loop and the products alone", *floors]
    return "\n".join([tables.table(header, rows), "", count, *missed, *(title if floors else [])])


def points(options: Options) -> dict[str, workloads.Size]:
    """The grid; from here on programs run in the thread that calls them."""
    timing.call_inline()
    return workloads.points(options)


BENCH = Bench(
    "flax",
    __doc__,
    baseline="flax.nnx.RNN as it comes, jitted",
    points=points,
    measure=measure,
    rows=Listed("points", lambda entry: str(workloads.Size.of(entry))),
    text=text,
    options=(
        Option("cells", list(CELLS), choices=list(CELLS)),
        *(Option("H", [4, 20, 64]), Option("B", [1, 16]), Option("T", [100, 1000])),
        Option("solvers", [candidates.AUTO, "kept"], choices=list(candidates.SOLVERS)),
        Option("floor", False, "times its loop and products alone"),
        Option("unroll", 1, "of both layers"),
        Option("seed", 0),
        *racing(seconds=20.0),
    ),
    quick={"cells": ["GRUCell"], "H": [3], "B": [2], "T": [8]},
    fixed=("seed", "unroll", "solvers"),
)
