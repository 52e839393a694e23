"""Makes the tables of README.md and bench/README.md anew from the records in bench/results.

python -m bench tables
"""

import argparse
import json
import math
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

from bench.paper.pipeline import report as pipeline
from bench.shared import pages

HERE = pathlib.Path(__file__).parent
PAGES = (HERE.parent / "README.md", HERE / "README.md")
JAX = ("0.10", "0.12")
"""Versions of which the CPU grids are recorded."""
GRIDS = {
    ("scan", "0.10"): "scan_xeon",
    ("scan", "0.12"): "scan_jax012_xeon",
    ("second order", "0.10"): "scan_second_order_xeon",
    ("steps", "0.10"): "steps_xeon_jax010",
    ("steps", "0.12"): "steps_zen4_jax012",
    ("flax", "0.10"): "flax_xeon",
    ("flax", "0.12"): "flax_zen4_jax012",
}
"""Their files."""
SLOW = 0.95
SIZE = ("cell", "hidden", "batch", "length")
CELLS = {"elman": "Elman", "gru": "GRU", "lstm": "LSTM", "custom": "one's own"}

Record = dict[str, Any]


def main(argv: Sequence[str]) -> None:
    """Makes them, and says which files have changed."""
    argparse.ArgumentParser("python -m bench tables", description=__doc__).parse_args(argv)
    for path in pages.fill(PAGES, MAKERS):
        print(f"made the tables of {path.name} anew")


def read(name: str) -> Record:
    """A record of bench/results."""
    return json.loads((HERE / "results" / f"{name}.json").read_text())


def grid(kind: str, jax: str) -> Record:
    """The record of a CPU grid with a version of JAX."""
    return read(GRIDS[kind, jax])


# Scans of cells


def scan() -> str:
    """Value and gradient over `lax.scan`, with the first version of JAX."""
    (jax, *_) = JAX
    made = _by_size(grid("scan", jax), "value_and_grad")
    return pages.markdown(
        ["H, B, T", *CELLS.values()],
        [[size, *(_number(cells.get(c)) for c in CELLS)] for size, cells in made.items()],
    )


def scans() -> str:
    """Value and gradient over `lax.scan`, with both."""
    return _of_sizes([("scan", jax, "value_and_grad") for jax in JAX])


def second_order() -> str:
    """Hessian-vector products over those through `lax.scan`."""
    (jax, *_) = JAX
    return _of_sizes([("second order", jax, "hvp")])


def _of_sizes(columns: Sequence[tuple[str, str, str]]) -> str:
    made = [_by_size(grid(kind, jax), mode) for kind, jax, mode in columns]
    return pages.markdown(
        ["H, B, T", *CELLS.values()],
        [
            [size, *(", ".join(_number(part.get(size, {}).get(c)) for part in made) for c in CELLS)]
            for size in made[0]
        ],
    )


def _by_size(record: Record, mode: str) -> dict[str, dict[str, Record]]:
    """The comparisons by size and cell; a star in the choice is `lax.scan` itself."""
    found: dict[str, dict[str, Record]] = {}
    for p in sorted(record["points"], key=lambda p: (p["hidden"], p["batch"], p["length"])):
        size = f"{p['hidden']}, {p['batch']}, {p['length']}"
        compared = p["solvers"]["auto"]["modes"][mode]
        found.setdefault(size, {})[p["cell"]] = compared | {"choice": p["choice"]}
    return found


# Layers of Flax


def flax() -> str:
    """Value and gradient over Flax's layers at 1000 steps, 16 rows and one."""
    (jax, *_) = JAX
    points = grid("flax", jax)["points"]
    cells = list(dict.fromkeys(p["cell"] for p in points))
    found = {
        (p["cell"], p["hidden"], p["batch"]): p["solvers"]["auto"]["phases"]["value_and_grad"]
        for p in points
        if p["length"] == 1000
    }
    rows = [
        [str(h), *(", ".join(_number(found[cell, h, b]) for b in (16, 1)) for cell in cells)]
        for h in sorted({h for _, h, _ in found})
    ]
    return pages.markdown(["H", *cells], rows)


def layers() -> str:
    """All points of the layers, value and gradient with both versions."""
    found: dict[str, list[str]] = {}
    for jax in JAX:
        for p in grid("flax", jax)["points"]:
            size = f"{p['cell']}, {p['hidden']}, {p['batch']}, {p['length']}"
            phases = p["solvers"]["auto"]["phases"]
            found.setdefault(size, []).append(_number(phases["value_and_grad"]))
    return pages.markdown(
        ["cell, H, B, T", *(f"jax {jax}" for jax in JAX)], [[k, *v] for k, v in found.items()]
    )


# Steps that people write


def steps() -> str:
    """All programs, as chosen, with both versions."""
    found: dict[str, list[str]] = {}
    for jax in JAX:
        for p in grid("steps", jax)["points"]:
            compared = p["solvers"]["auto"]["value_and_grad"] | {"choice": p["choice"]}
            swept = p["solvers"]["sweep"]["value_and_grad"]
            found.setdefault(p["name"], []).extend([_number(compared), _number(swept)])
    header = ["program", *(f"jax {jax}, {by}" for jax in JAX for by in ("chosen", "swept"))]
    return pages.markdown(header, [[k, *v] for k, v in found.items()])


# What the grids come to


def grids() -> str:
    """A line for each grid and version: points, mean, range, how many are slow."""
    rows = []
    for kind in ("scan", "steps", "flax"):
        for jax in JAX:
            found = dict(_compared(kind, grid(kind, jax)))
            speedups = [compared["speedup"] for compared in found.values()]
            slow = [name for name, compared in found.items() if compared["high"] < SLOW]
            rows.append(
                [
                    f"`{kind}`, jax {jax}",
                    str(len(found)),
                    f"{_mean(speedups):.2f}",
                    f"{min(speedups):.2f} to {max(speedups):.2f}",
                    "; ".join(f"{name} ({found[name]['speedup']:.2f})" for name in slow) or "none",
                ]
            )
    header = ["grid", "points", "geometric mean", "range", f"whole interval below {SLOW}"]
    return pages.markdown(header, rows)


def _compared(kind: str, record: Record) -> Iterable[tuple[str, Record]]:
    """Value and gradient as chosen, of every point."""
    for p in record["points"]:
        ours = p["solvers"]["auto"]
        yield (
            p.get("name") or " ".join(str(p[k]) for k in SIZE),
            ours.get("modes", ours.get("phases", ours))["value_and_grad"],
        )


# On a GPU

_SIDES = {
    "`lax.scan`": "lax.scan",
    "`None`": "auto",
    '`"fused"`': "fused_sequential",
    '`"fused"`, `Pallas()`': "fused",
    "cuDNN": "cudnn",
    "cuDNN in a CUDA graph": "cudnn_graph",
}


def gpu_steps() -> str:
    """Training steps on a GPU, milliseconds."""
    return _gpu("step", lambda seconds: f"{1e3 * seconds:.3g}")


def _gpu(phase: str, shown: Any) -> str:
    points = [p for p in read("gpu")["points"] if p["cell"] == "elman"]
    points = [p for p in points if p.get("dtype", "float32") == "float32"]
    points.sort(key=lambda p: (p["batch"], p["length"]))
    rows = [
        [
            f"{p['batch']}, {p['length']}",
            *(_shown(p["contenders"].get(s), phase, shown) for s in _SIDES.values()),
        ]
        for p in points
    ]
    return pages.markdown(["B, T", *_SIDES], rows)


def _shown(side: Record | None, phase: str, shown: Any) -> str:
    """The median of one side, nothing where it was not timed."""
    times = {} if side is None else side["times"]
    return shown(times[phase]["median"]) if phase in times else ""


def _number(compared: Record | None) -> str:
    """A speedup; with a star where the choice is `lax.scan` itself."""
    if compared is None:
        return ""
    left = compared.get("choice") == "lax.scan"
    return f"{compared['speedup']:.2f}{' *' if left else ''}"


def _mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


MAKERS: pages.Makers = {
    "scan": scan,
    "scans": scans,
    "second order": second_order,
    "flax": flax,
    "layers": layers,
    "steps": steps,
    "grids": grids,
    "gpu steps": gpu_steps,
    "pipeline accuracy": lambda: pipeline.accuracy_page(read("pipeline")["points"]),
    "pipeline remedies": lambda: pipeline.remedies_page(read("pipeline")["points"]),
}
"""Tables by name."""
