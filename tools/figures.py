"""Draws the figures of docs/figures: python -m tools.figures.

Measured numbers are those of bench/results, counted ones those of the package.
"""

import functools
import json
import pathlib
from collections.abc import Callable

import jax
import jax.numpy as jnp

import parscan_bp as pb
from parscan_bp.plots import schedule_of
from tools.svg import Axes, Picture, Point

ROOT = pathlib.Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "figures"
GREY, BLUE, ORANGE, GREEN, PURPLE = range(5)


def main() -> None:
    """Draws them all."""
    for name, draw in FIGURES.items():
        (FOLDER / f"{name}.svg").write_text(draw())


def record(name: str) -> dict:
    """A record of bench/results."""
    return json.loads((ROOT / "bench" / "results" / f"{name}.json").read_text())


def tree() -> str:
    """The products of a sweep and of a tree, level by level, of a chain of 16 steps."""
    n, row, column = 16, 18, 15.5
    picture = Picture(420, "16 steps, swept in 16 levels and scanned in fewer")
    sides = ((pb.Sweep(), 26, "Sweep()"), (pb.Blelloch(), 300, "Blelloch()"))
    for solver, left, name in sides:
        schedule = schedule_of(solver, n)
        levels = schedule.levels
        picture.text((left - 8, 30), f"{name}: {len(levels)} levels", "title")
        told = f"{schedule.matrix_products or 'no'} products of matrices"
        picture.text((left - 8, 50), told, "small quiet")
        places: dict = {}
        for level, nodes in enumerate(levels, 1):
            for node in nodes:
                offset = 0.5 if node.kind == "matrix" else 0
                places[node] = left + column * (node.stop - offset), 66 + row * level
        for node, to in places.items():
            for operand in filter(places.get, node.operands):
                picture.line([places[operand], to], f"edge s{GREY}")
        for node, (x, y) in places.items():
            if node.kind == "matrix":
                picture.box((x - 4.5, y - 4.5), 9, 9, f"f{ORANGE}")
            else:
                picture.dot((x, y), f"f{BLUE}")
    picture.dot((24, 398), f"f{BLUE}")
    picture.text((34, 403), "a matrix times a vector", "small")
    picture.box((203.5, 393.5), 9, 9, f"f{ORANGE}")
    picture.text((218, 403), "a matrix times a matrix", "small")
    picture.text((544, 403), "time runs down", "small quiet", "end")
    return str(picture)


def memory() -> str:
    """Time against memory of a gradient: what a limit takes, and what others do."""
    points = record("memory")["points"]
    sides = {"lax.scan": GREY, "nested": GREEN, "equinox": ORANGE}
    picture = Picture(650, "Time against memory of a gradient over a long horizon")
    picture.text((16, 30), "Time against memory of a gradient", "title")
    names = [*zip(sides.values(), ("lax.scan", "two nested, by hand", "equinox"), strict=True)]
    _legend(picture, 54, [*names, (BLUE, "Sweep(), memory_limit=")])
    for k, (name, point) in enumerate(points.items()):
        made = point["sides"]
        top = 96 + 180 * k
        picture.text((16, top - 8), name, "small")
        axes = Axes(picture, (52, top), (480, 130), (0.1e6, 1e9), (0.6, 8))
        sizes = ("0.1 MB", "1 MB", "10 MB", "100 MB", "1 GB")
        axes.ticks(
            [(10.0**e, name) for e, name in enumerate(sizes, 5)], [(1, "1"), (2, "2"), (4, "4")]
        )
        ours = [_stored(side) for key, side in made.items() if key.startswith(("Sweep", "limit"))]
        axes.series(sorted(ours), BLUE)
        for side, hue in sides.items():
            axes.series([_stored(made[side])], hue, radius=6)
    picture.text((16, 638), "up: its time, over that of lax.scan", "small quiet")
    picture.text((544, 638), "right: memory beside arguments", "small quiet", "end")
    return str(picture)


def _stored(side: dict) -> Point:
    """The bytes, and the time over that of `lax.scan`."""
    return side["temp_bytes"], 1 / side["comparison"]["speedup"] if side["comparison"] else 1.0


def _legend(picture: Picture, y: float, entries: list[tuple[int, str]]) -> None:
    left = 22.0
    for hue, name in entries:
        picture.dot((left, y - 5), f"f{hue}")
        picture.text((left + 9, y), name, "small")
        left += 30 + 6.6 * len(name)


def speed() -> str:
    """A training step over its length, on a GPU."""
    sides = {
        "lax.scan": ("lax.scan", GREY),
        "auto": ("solver=None", BLUE),
        "cudnn": ("cuDNN", ORANGE),
        "fused_sequential": ('"fused"', GREEN),
        "fused": ('"fused", Pallas()', PURPLE),
    }
    found = record("gpu")
    points = [p for p in found["points"] if p["cell"] == "elman" and p["batch"] == 16]
    points.sort(key=lambda p: p["length"])
    device = found["runs"][0]["device"]["kind"].split(" 80GB")[0]
    picture = Picture(400, f"A training step over its length on an {device}")
    picture.text((16, 30), f"A training step over its length, on an {device}", "title")
    picture.text((16, 50), "the RNN of the paper, 20 units, 16 rows; milliseconds", "small quiet")
    axes = Axes(picture, (52, 70), (350, 280), (10, 30_000), (0.1, 400))
    axes.ticks(
        [(10.0**e, f"T={10**e:,}") for e in range(1, 5)],
        [(10.0**e, f"{10.0**e:g}") for e in range(-1, 3)],
    )
    for side, (name, hue) in sides.items():
        timed = [(p, p["contenders"].get(side, {}).get("times", {})) for p in points]
        places = [(p["length"], 1e3 * t["step"]["median"]) for p, t in timed if "step" in t]
        axes.series(places, hue)
        picture.text((axes.at(*places[-1])[0] + 10, axes.at(*places[-1])[1] + 5), name, "small")
    return str(picture)


def explain() -> str:
    """What `explain` prints of the first example."""
    cell, arrays = pb.cells.GRU(), jax.ShapeDtypeStruct
    params = cell.init(jax.random.key(0), inputs=8, hidden=20)
    xs = arrays((1000, 16, 8), jnp.float32)
    found = pb.explain(functools.partial(cell, params), arrays((16, 20), jnp.float32), xs)
    picture = Picture(396, "What explain prints of a GRU: the solver, the structure, costs")
    picture.text((16, 32), "pb.explain(step, h0, xs)", "code title")
    rows = [
        ("derivatives by", found.choice, found.reason.split(",")[0]),
        (
            "Jacobian",
            str(found.structure),
            f"{found.columns} x {found.columns} for each of 16 rows",
        ),
        ("stored", *found.stored.split(": ")),
    ]
    for k, (what, value, why) in enumerate(rows):
        y = 66 + 28 * k
        picture.text((16, y), what, "quiet")
        picture.text((132, y), value, f"code f{BLUE}")
        picture.text((262, y), why, "small quiet")
    columns = (("steps in a row", 124), ("operations", 274), ("bytes alive", 424))
    for quantity, left in columns:
        picture.text((left, 166), quantity, "small quiet")
    for k, candidate in enumerate(found.candidates):
        name, y = type(candidate.solver).__name__, 182 + 44 * k
        picture.text((16, y + 17), name, "code small")
        counts = candidate.steps, candidate.flops, candidate.bytes
        most = [
            max(c)
            for c in zip(*((c.steps, c.flops, c.bytes) for c in found.candidates), strict=True)
        ]
        for (_, left), count, largest in zip(columns, counts, most, strict=True):
            picture.box(
                (left, y),
                max(110 * count / largest, 2),
                12,
                f"f{BLUE if name in found.choice else GREY}",
            )
            picture.text((left, y + 27), f"{count:,}" if count < 1e5 else f"{count:.1e}", "small")
    picture.text((16, 378), "counts, for as many processors as one likes: no times", "small quiet")
    return str(picture)


FIGURES: dict[str, Callable[[], str]] = {
    "tree": tree,
    "memory": memory,
    "speed": speed,
    "explain": explain,
}

if __name__ == "__main__":
    main()
