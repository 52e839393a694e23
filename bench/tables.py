"""Makes the tables of README.md and those of the benches' pages anew from the records.

python -m bench tables
"""

import argparse
import functools
import importlib
import json
import math
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

from bench.__main__ import BENCHES
from bench.grids import peers, roofline
from bench.grids.forward import report as forward
from bench.paper.claims import bench as paper
from bench.paper.pipeline import delays, residual
from bench.paper.pipeline import report as pipeline
from bench.paper.vgg11 import report as vgg11
from bench.shared import pages
from parscan_bp.choice.limits import cpu_limits

HERE = pathlib.Path(__file__).parent
PAGES = (
    HERE.parent / "README.md",
    *(HERE.parent / "docs" / f"{name}.md" for name in ("choose", "cpu", "programs", "start")),
    *(HERE / name for name in ("README.md", "paper/README.md")),
)
JAX = ("0.10", "0.12")
"""Versions of which the CPU grids are recorded."""
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


def recorded(name: str) -> Record | None:
    """A record of bench/results, if there is one."""
    return read(name) if (HERE / "results" / f"{name}.json").exists() else None


def grid(kind: str, jax: str) -> Record:
    """The record of a CPU grid with a version of JAX."""
    return read(f"{kind}_xeon_jax{jax.replace('.', '')}")


# Scans of cells


def scan() -> str:
    """Value and gradient over `lax.scan`, with the newest version of JAX."""
    (*_, jax) = JAX
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
    return _of_sizes([("scan", jax, "hvp")])


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


def first() -> str:
    """The GRU of the page to start with."""
    speeds = (_by_size(grid("scan", jax), "value_and_grad")["20, 16, 1000"]["gru"] for jax in JAX)
    row = ["GRU, H=20, B=16, T=1000", *map(_number, speeds)]
    return pages.markdown(["value and gradient", *(f"jax {jax}" for jax in JAX)], [row])


def rules() -> str:
    """The rules of `solver=None`, with the numbers that they have for a CPU."""
    n = cpu_limits()
    by_lax = "`lax.scan`"
    rows = [
        ["1", "no CPU: a cell on one NVIDIA GPU", 'one kernel, `Pallas(mode="sequential")`'],
        ["", "no CPU: any other step", by_lax],
        ["2", f"at most {n.handful} steps, or equations x numbers x steps below {n.short}", by_lax],
        [
            "3",
            f"at most {n.tiny} numbers carried, and {n.tiny_bytes} bytes a step",
            by_lax,
        ],
        ["", "the same of a cell of the library", "`Sweep(1, recompute=False)`"],
        ["4", "your own step, and it is heavy (below)", by_lax],
        ["5", f"over {n.rows} rows multiplied, and over {n.wide} numbers carried", by_lax],
        ["6", f"jax 0.12: one row; or no matrix products, below {n.one_kernel} numbers", by_lax],
        ["", "everything else", "`Sweep()`"],
    ]
    return pages.markdown(["rule", "where", "`solver=None` is"], rows)


# Layers of Flax


def flax() -> str:
    """Value and gradient over Flax's layers at 1000 steps, 16 rows and one."""
    (*_, jax) = JAX
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


SIDES = {"auto": "chosen", "sweep": "swept", "tuned": "tuned"}
"""What `bench steps` times, in words; nothing was tuned where it was not asked for."""


def steps() -> str:
    """All programs, as chosen, swept and tuned, with both versions."""
    header, columns = ["program"], []
    for jax in JAX:
        points = {p["name"]: p for p in grid("steps", jax)["points"]}
        timed = {side for p in points.values() for side in p["solvers"]}
        for side in [side for side in SIDES if side in timed]:
            header.append(f"jax {jax}, {SIDES[side]}")
            columns.append({name: _of_side(p, side) for name, p in points.items()})
    names = dict.fromkeys(name for column in columns for name in column)
    rows = [[name, *(column.get(name, "") for column in columns)] for name in names]
    return pages.markdown(header, rows)


def _of_side(point: Record, side: str) -> str:
    compared = point["solvers"][side]["value_and_grad"]
    return _number(compared | {"choice": point["choice"]} if side == "auto" else compared)


# What the grids come to


def grids() -> str:
    """A line for each grid and version: points, mean, range, how many are slow."""
    rows = [
        [f"`{kind}`, jax {jax}", *_in_all(grid(kind, jax), "auto")]
        for kind in ("scan", "steps", "flax")
        for jax in JAX
    ]
    (jax, *_) = JAX
    rows.append([f"`steps`, jax {jax}, tuned", *_in_all(grid("steps", jax), "tuned")])
    header = ["grid", "points", "geometric mean", "range", f"whole interval below {SLOW}"]
    return pages.markdown(header, rows)


def _in_all(record: Record, side: str) -> list[str]:
    """Value and gradient of one side: points, mean, range, and those that are slow."""
    found = dict(_compared(record, side))
    speedups = [compared["speedup"] for compared in found.values()]
    slow = [f"{name} ({c['speedup']:.2f})" for name, c in found.items() if c["high"] < SLOW]
    return [
        str(len(found)),
        f"{_mean(speedups):.2f}",
        f"{min(speedups):.2f} to {max(speedups):.2f}",
        "; ".join(slow) or "none",
    ]


def _compared(record: Record, side: str) -> Iterable[tuple[str, Record]]:
    for p in record["points"]:
        ours = p["solvers"][side]
        yield (
            p.get("name") or " ".join(str(p[k]) for k in SIZE),
            ours.get("modes", ours.get("phases", ours))["value_and_grad"],
        )


# On a GPU

_CONTENDERS = {
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
    # `lax.scan` is not timed at all points; the others are in the file.
    points = [p for p in points if p["contenders"].get("lax.scan", {}).get("times")]
    points.sort(key=lambda p: (p["batch"], p["length"]))
    rows = [
        [
            f"{p['batch']}, {p['length']}",
            *(_shown(p["contenders"].get(s), phase, shown) for s in _CONTENDERS.values()),
        ]
        for p in points
    ]
    return pages.markdown(["B, T", *_CONTENDERS], rows)


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


# Programs of others


def others() -> str:
    """Each program by `replace_scans` over itself, with both versions where both were recorded."""
    header = ["program", "scans", "taken"]
    rows: dict[str, list[str]] = {}
    for jax in JAX:
        if recorded(f"others_xeon_jax{jax.replace('.', '')}") is None:
            continue
        points = grid("others", jax)["points"]
        header += [f"jax {jax}: `None`", "`Sweep()`", "memory", "compiling"]
        for name in points.keys() - rows.keys():
            counts = [str(points[name][key]) for key in ("scans", "taken")]
            rows[name] = [name, *counts, *[""] * (len(header) - 7)]
        for name, row in rows.items():
            row += _of_others(points[name]) if name in points else [""] * 4
    return pages.markdown(header, [rows[name] for name in sorted(rows, key=str.lower)])


def _of_others(point: Record) -> list[str]:
    own, chosen = (point["sides"][name] for name in ("as it is", "solver=None"))
    compared = [point["sides"][name]["comparison"] for name in ("solver=None", "Sweep()")]
    speeds = [f"{c['speedup']:.2f} [{c['low']:.2f}, {c['high']:.2f}]" for c in compared]
    ratios = [chosen[k] / max(own[k], 1e-9) for k in ("temp_bytes", "compile_seconds")]
    return [*speeds, *(f"{ratio:.2f}" for ratio in ratios)]


# Long horizons


def memory() -> str:
    """Temporary memory, and the time over that of `lax.scan`."""
    rows = []
    for name, point in read("memory")["points"].items():
        sides = dict(point["sides"])
        limits = {k: side for k, side in sides.items() if k.startswith("limit")}
        near = [side for side in limits.values() if side["temp_bytes"] <= _near(sides)]
        sides["near"] = min(near, key=_time, default=None)
        sides["least"] = min(limits.values(), key=lambda side: side["temp_bytes"])
        rows.append([name, *(_stored(sides.get(side)) for side in _STORING.values())])
    return pages.markdown(["program", *_STORING], rows)


_STORING = {
    "`lax.scan`": "lax.scan",
    "two nested": "nested",
    "equinox": "equinox",
    "`solver=None`": "solver=None",
    "`Sweep()`": "Sweep()",
    "limit as two nested": "near",
    "least limit": "least",
}


def _near(sides: Record) -> float:
    """About as much as two nested scans take."""
    return 1.1 * sides["nested"]["temp_bytes"]


def _time(side: Record) -> float:
    compared = side["comparison"]
    return 1.0 if compared is None else 1 / compared["speedup"]


def _stored(side: Record | None) -> str:
    return "" if side is None else f"{side['temp_bytes'] / 1e6:.3g} MB, {_time(side):.2f}"


# What a bench prints of its record


def report(name: str) -> str:
    """A bench's own text."""
    bench = importlib.import_module(BENCHES[name]).BENCH
    return f"```text\n{bench.text(read(name))}\n```"


def small_peers() -> str:
    """Small recurrent layers, with each version of JAX."""
    found = {jax: read(f"peers_small_jax{jax.replace('.', '')}")["points"] for jax in JAX}
    return peers.page_by_version(found)


REPORTS = ("executors", "mesh", "solvers", "truncated")

MAKERS: pages.Makers = {
    "scan": scan,
    "scans": scans,
    "first": first,
    "rules": rules,
    "second order": second_order,
    "flax": flax,
    "layers": layers,
    "steps": steps,
    "others": others,
    "grids": grids,
    "memory": memory,
    "peers": lambda: peers.page(read("peers")["points"]),
    "small peers": small_peers,
    "long peers": lambda: peers.page(read("peers_long")["points"], ("cell", "H", "T")),
    "roofline": lambda: roofline.page(read("roofline")["points"]),
    "forward": lambda: forward.page([grid("forward", jax) for jax in JAX]),
    "gpu steps": gpu_steps,
    **{f"report {name}": functools.partial(report, name) for name in REPORTS},
    **{f"claims {name}": functools.partial(paper.claims, name, recorded) for name in paper.PAPERS},
    "vgg11 training": lambda: vgg11.training_page(read("vgg11")),
    "pipeline accuracy": lambda: pipeline.accuracy_page(read("pipeline")["points"]),
    "delays": lambda: delays.page(read("delays")),
    "residual": lambda: residual.page(read("residual")),
    "pipeline remedies": lambda: pipeline.remedies_page(read("pipeline")["points"]),
}
"""Tables by name."""
