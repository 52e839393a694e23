"""Recurrent layers on a CPU: value and gradient by Flax and by ours, native loops among them.

Sides are `flax.nnx.RNN` as it comes, `parscan_bp.nnx.RNN` by ``solver=None``, by
`Sweep(native=True)`, of the same values, and with ``forward="fused"``. Where torch is installed,
`torch.nn.RNN`, `GRU` and `LSTM` of the same sizes run beside them: their parameters are their own,
so that only times are compared. All other gradients are compared first.
"""

import functools
import importlib.util
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import parscan_bp.nnx
from bench.grids import workloads
from bench.shared import pages, programs, sides, tables, timing
from bench.shared.bench import Bench, Named, Option, Options, Result, racing

FLAX, TORCH = "flax", "torch"
OURS: dict[str, dict[str, Any]] = {
    "solver=None": {},
    "Sweep(native=True)": {"solver": parscan_bp.Sweep(native=True)},
    'forward="fused"': {"forward": "fused"},
}
CELLS = {"SimpleCell": "RNN", "GRUCell": "GRU", "OptimizedLSTMCell": "LSTM"}
"""Cells of Flax, and torch's layer of the same kind."""


def program(cell: str, size: workloads.Size, layer: Callable, seed: int) -> programs.Program:
    """Value and gradient of a layer; the same numbers for every layer.

    Args:
      cell: of `flax.nnx`.
      size: H units, B rows, T steps.
      layer: of a cell, as `flax.nnx.RNN`.
      seed: of the numbers.
    """
    made = getattr(nnx, cell)(size.hidden, size.hidden, rngs=nnx.Rngs(seed))
    graph, point = nnx.split(made)
    xs = jax.random.normal(jax.random.key(seed), (size.batch, size.length, size.hidden))

    def loss(point, xs):
        return jnp.mean(layer(nnx.merge(graph, point))(xs) ** 2)

    return programs.build(jax.value_and_grad(loss, (0, 1)), point, xs)


def measure(size: workloads.Size, options: Options) -> Result:
    """Compares gradients, then times all."""
    layers = {k: functools.partial(parscan_bp.nnx.RNN, **how) for k, how in OURS.items()}
    made = {
        k: program(size.cell, size, layer, options.seed)
        for k, layer in {FLAX: nnx.RNN, **layers}.items()
    }
    want = made[FLAX].call()
    errors = {
        k: programs.check_equal(want, p.call(), 1e-3, f"{size}: {k}") for k, p in made.items()
    }
    lanes: dict[str, Any] = dict(made)
    if options.torch and importlib.util.find_spec("torch") is not None:
        lanes[TORCH] = _Torch(size)
    found = sides.raced(lanes, FLAX, options)
    for name, error in errors.items():
        found[name]["difference"] = error
    return {"sides": found}


class _Torch:
    """A layer of torch, as `programs.Program` is called."""

    temp_bytes = 0
    compile_seconds = 0.0

    def __init__(self, size: workloads.Size):
        import torch

        self._layer = getattr(torch.nn, CELLS[size.cell])(
            size.hidden, size.hidden, batch_first=True
        )
        self._xs = torch.randn(size.batch, size.length, size.hidden, requires_grad=True)

    def call(self) -> np.ndarray:
        self._layer.zero_grad()
        self._xs.grad = None
        self._layer(self._xs)[0].square().mean().backward()
        return self._xs.grad.numpy()


def points(options: Options) -> dict[str, workloads.Size]:
    """Cells and sizes; from here on programs run in the thread that calls them."""
    timing.call_inline()
    return workloads.points(options)


def text(result: Result) -> str:
    """Flax's time over each side's."""
    names = [FLAX, *OURS, TORCH]
    rows = []
    for point, entry in result["points"].items():
        found = entry["sides"]
        first = tables.medians(found[next(iter(OURS))]["comparison"])[0]
        cells = [tables.speedup(found[n]["comparison"]) if n in found else "-" for n in names[1:]]
        rows.append([point, first, *cells])
    return tables.table(["flax / it [95 %]", FLAX, *names[1:]], rows)


def page(points: dict[str, Result], by: Sequence[str] = ("cell", "H")) -> str:
    """Flax's time over each side's: the geometric mean over what is left open, and the least.

    Args:
      points: of the record.
      by: what of a size has rows of its own.
    """
    names = _names(points)
    return pages.markdown([*by, *(f"`{name}`" for name in names)], _rows(points, names, by))


def page_by_version(found: dict[str, dict[str, Result]]) -> str:
    """The same for the points of several versions of jax."""
    names, by = _names(next(iter(found.values()))), ("cell", "H")
    header = ["jax", *by, *(f"`{name}`" for name in names)]
    rows = [[jax, *row] for jax, points in found.items() for row in _rows(points, names, by)]
    return pages.markdown(header, rows)


def _names(points: dict[str, Result]) -> list[str]:
    return [name for name in next(iter(points.values()))["sides"] if name != FLAX]


def _rows(points: dict[str, Result], names: list[str], by: Sequence[str]) -> list[list[str]]:
    kinds: dict[tuple[str, ...], list[Result]] = {}
    for name, point in points.items():
        cell, *sizes = name.split()
        of = {"cell": cell, **dict(size.split("=") for size in sizes)}
        kinds.setdefault(tuple(of[key] for key in by), []).append(point["sides"])
    rows = []
    for kind, found in kinds.items():
        speeds = [[entry[name]["comparison"]["speedup"] for entry in found] for name in names]
        rows.append([*kind, *map(_mean_and_least, speeds)])
    return rows


def _mean_and_least(speeds: list[float]) -> str:
    least = f" ({min(speeds):.2f})" if len(speeds) > 1 else ""
    return f"{statistics.geometric_mean(speeds):.2f}{least}"


BENCH = Bench(
    "peers",
    __doc__,
    baseline="flax.nnx.RNN as it comes, jitted",
    points=points,
    measure=measure,
    rows=Named("points"),
    text=text,
    options=(
        Option("cells", list(CELLS), choices=list(CELLS)),
        *(Option("H", [20, 64, 128, 256]), Option("B", [1, 16, 32]), Option("T", [500])),
        Option("torch", True, "whether torch takes part, where it is", kind=lambda v: v != "no"),
        Option("seed", 0),
        *racing(5, 2, 10.0),
    ),
    quick={"cells": ["GRUCell"], "H": [3], "B": [2], "T": [8]},
    fixed=("seed",),
)
