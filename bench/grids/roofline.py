"""What bounds a recurrent layer on a CPU: its native loops beside what the cores can do at most.

Value and gradient of `parscan_bp.nnx.RNN` with ``forward="fused"`` are made of

    12 T B G H^2   flops of products: of inputs and states, forward, and twice that backward,
    4 (6 + 2 (C - 1)) T B H   bytes of arrays over all steps: inputs, states, and their cotangents,
    F T B H   values of tanh and sigmoid,

for G gates, C leaves of the carry and F functions a unit. In the same rounds this machine's rates
are measured: of a product of large matrices, of doubling an array as long as the layer's, and of a
native loop that is tanh alone. Counts over rates are the times below which no program comes that
does one after the other.
"""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
from flax import nnx

import parscan_bp as pb
import parscan_bp.nnx
from bench.grids import peers, workloads
from bench.shared import pages, programs, sides, tables, timing
from bench.shared.bench import Bench, Named, Option, Options, Result, racing

LAYER = 'forward="fused"'
ORDER, FUNCTIONS = 1024, (500, 16, 256)
"""Rows of the matrices, and steps, rows and units of the loop, of which rates are measured."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """A cell of Flax.

    Attributes:
      name: in `flax.nnx`.
      gates, leaves, functions: G, C and F.
    """

    name: str
    gates: int
    leaves: int
    functions: int


CELLS = {
    "Elman": Cell("SimpleCell", 1, 1, 1),
    "GRU": Cell("GRUCell", 3, 1, 3),
    "LSTM": Cell("OptimizedLSTMCell", 4, 2, 5),
}
POINTS = (("Elman", 20, 16, 1000), ("GRU", 64, 16, 500), ("LSTM", 256, 32, 500))
QUICK = (("GRU", 4, 2, 8),)


def points(options: Options) -> dict[str, workloads.Size]:
    """The layers; from here on programs run in the thread that calls them."""
    timing.call_inline()
    sizes = [workloads.Size(*point) for point in (QUICK if options.quick else POINTS)]
    return {str(size): size for size in sizes}


def counts(size: workloads.Size) -> dict[str, int]:
    """What the value and gradient of a layer are made of, by the rate that bounds it."""
    cell, numbers = CELLS[size.cell], size.length * size.batch * size.hidden
    return {
        "products": 12 * numbers * cell.gates * size.hidden,
        "memory": 4 * (6 + 2 * (cell.leaves - 1)) * numbers,
        "functions": cell.functions * numbers,
    }


def measure(size: workloads.Size, options: Options) -> Result:
    """Compares the gradient with Flax's, then times it beside what tells the rates."""
    flax, fused = (
        peers.program(CELLS[size.cell].name, size, layer, options.seed)
        for layer in (nnx.RNN, functools.partial(parscan_bp.nnx.RNN, forward="fused"))
    )
    error = programs.check_equal(flax.call(), fused.call(), 1e-3, str(size))
    probes = _probes(size, options)
    lanes = {name: program for name, (program, _) in probes.items()}
    found = sides.raced({LAYER: fused, **lanes}, LAYER, options)
    compared = {name: found[name]["comparison"] for name in probes}
    rates = {k: work / compared[k]["candidate"]["median"] for k, (_, work) in probes.items()}
    return {
        "counts": counts(size),
        "rates": {name: timing.rounded(rate) for name, rate in rates.items()},
        "seconds": compared["products"]["baseline"],
        "comparisons": compared,
        "difference": error,
    }


def _probes(size: workloads.Size, options: Options) -> dict[str, tuple[programs.Program, float]]:
    """Programs that meet one bound each, and how much of it they do."""
    rng = np.random.default_rng(options.seed)
    order, long = 64 if options.quick else ORDER, size.length * size.batch * size.hidden
    matrix = jnp.asarray(rng.standard_normal((order, order)), jnp.float32)
    steps, *shape = FUNCTIONS

    def functions(h):
        step = lambda h, _: (jnp.tanh(h), None)  # noqa: E731
        return pb.scan(step, h, None, steps, forward="fused")[0]

    return {
        "products": (programs.build(jnp.dot, matrix, matrix), 2.0 * order**3),
        "memory": (programs.build(lambda a: 2 * a, jnp.ones(long)), 8.0 * long),
        "functions": (
            programs.build(functions, jnp.ones(shape)),
            float(np.prod(FUNCTIONS)),
        ),
    }


def bounds(entry: Result) -> dict[str, float]:
    """Least seconds by each rate."""
    return {name: count / entry["rates"][name] for name, count in entry["counts"].items()}


def _rows(points: dict[str, Result]) -> list[list[str]]:
    rows = []
    for name, entry in points.items():
        taken, least = entry["seconds"]["median"], bounds(entry)
        cells = [f"{1e3 * seconds:.2f}" for seconds in (taken, *least.values())]
        rows.append([name, *cells, f"{100 * sum(least.values()) / taken:.0f} %"])
    return rows


HEADER = ("layer", "ms", "products", "memory", "functions", "their sum, of the time")


def text(result: Result) -> str:
    """Times, and the least by each rate."""
    return tables.table(list(HEADER), _rows(result["points"]))


def page(points: dict[str, Result]) -> str:
    """The same, for a page."""
    return pages.markdown(list(HEADER), _rows(points))


BENCH = Bench(
    "roofline",
    __doc__,
    baseline="rates of this machine, measured in the same rounds",
    points=points,
    measure=measure,
    rows=Named("points"),
    text=text,
    options=(Option("seed", 0), *racing(15, 5, 20.0)),
    quick={},
    fixed=("seed",),
)
