"""Time against memory over long horizons: limits of ours, `lax.scan`, nested checkpoints, equinox.

Value and gradient of a loss of the last carry, so that nothing but the trajectory has to be stored.
"Nested" are the eight lines that one writes by hand: two scans, the inner one under
`jax.checkpoint`, of sqrt(T) steps each. `equinox.internal.scan` with checkpoints, where equinox is
installed, is Griewank's and Walther's recursion. Ours are `solver=None` and `Sweep()` as they come,
and by `Sweep()` all carries and limits; what each is told to take is compared with what the
compiler reports.
"""

import dataclasses
import functools
import importlib.util
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from matplotlib.figure import Figure

import parscan_bp as pb
from bench.shared import figures, programs, sides, tables
from bench.shared.bench import Bench, Named, Option, Options, Result, racing

LAX, NESTED, EQUINOX = "lax.scan", "nested", "equinox"
NONE, SWEEP, ALL = "solver=None", "Sweep()", "all carries"
Scan = Callable[[Callable, Any, Any], tuple[Any, Any]]


@dataclasses.dataclass(frozen=True)
class Case:
    """A loss of the last carry.

    Attributes:
        step: ``(weights, carry, x) -> (carry, None)``.
        weights, carry, xs: what it begins with; the weights are differentiated.
    """

    step: Callable
    weights: Any
    carry: Any
    xs: Any

    @property
    def length(self) -> int:
        return len(self.xs)

    def loss(self, scan: Scan) -> Callable:
        """By a scan of a step, the first carry and the inputs."""

        def total(weights, carry, xs):
            last, _ = scan(functools.partial(self.step, weights), carry, xs)
            floats = [a for a in jax.tree.leaves(last) if jnp.issubdtype(a.dtype, jnp.floating)]
            return sum(jnp.sum(a**2) for a in floats)

        return total

    def program(self, scan: Scan) -> programs.Program:
        """Its value and gradient by the weights."""
        run = jax.value_and_grad(self.loss(scan))
        return programs.build(run, self.weights, self.carry, self.xs)


def vector(length: int, key: jax.Array) -> Case:
    """A carry of 256 numbers, an elementwise step."""

    def step(w, h, x):
        return jnp.tanh(w * h + 0.1 * jnp.roll(h, 1) + x), None

    xs = 0.1 * jax.random.normal(key, (length,))
    return Case(step, jnp.linspace(0.5, 0.9, 256), jnp.linspace(-1, 1, 256), xs)


def gru(length: int, key: jax.Array) -> Case:
    """A GRU of 64 units and a batch of 16, one input each."""
    cell = pb.cells.GRU()
    params = cell.init(key, 1, 64)
    step = lambda p, h, x: (cell(p, h, x)[0], None)  # noqa: E731
    xs = jax.random.normal(key, (length, 16, 1))
    return Case(step, params, jnp.zeros((16, 64)), xs)


def counted(length: int, key: jax.Array) -> Case:
    """A carry of two arrays and a counter."""

    def step(w, carry, x):
        position, speed, count = carry
        speed = 0.99 * speed - 0.1 * jnp.sin(w * position) + x / (1 + count)
        return (position + 0.1 * speed, speed, count + 1), None

    carry = jnp.linspace(-1, 1, 512), jnp.zeros(512), jnp.int32(0)
    return Case(step, jnp.linspace(0.5, 1.5, 512), carry, 0.1 * jax.random.normal(key, (length,)))


CASES = {"vector": vector, "gru": gru, "counted": counted}


def points(options: Options) -> dict[str, Case]:
    """Each program at its length."""
    key = jax.random.key(options.seed)
    lengths = zip(options.programs, options.T, strict=True)
    return {f"{name}, T={length}": CASES[name](length, key) for name, length in lengths}


def nested(step, carry, xs):
    """sqrt(T) steps under `jax.checkpoint`, sqrt(T) times."""
    size = math.isqrt(len(xs))
    whole = len(xs) // size * size
    inner = jax.checkpoint(lambda c, x: lax.scan(step, c, x), prevent_cse=False)
    parts = xs[:whole].reshape(-1, size, *xs.shape[1:])
    carry, _ = lax.scan(inner, carry, parts)
    return lax.scan(step, carry, xs[whole:])


def equinox(step, carry, xs):
    """The checkpointed scan of equinox."""
    import equinox.internal as eqxi

    return eqxi.scan(step, carry, xs, kind="checkpointed", checkpoints=None)


def _told(case: Case, **how) -> int | None:
    """What ours is told to store; ``None`` where that is `jax.lax.scan`'s affair."""
    step = functools.partial(case.step, case.weights)
    stored = pb.explain(step, case.carry, case.xs, **how).stored
    if "about " not in stored:
        return None
    return int(stored.rsplit("about ", 1)[1].split(" ")[0].replace(",", ""))


def _limits(case: Case, how: dict[str, Any], whole: int, count: int) -> list[int]:
    """So many limits below all carries, no two of which store the same; fewer, if there are not."""
    found: dict[int | None, int] = {}
    for limit in map(int, np.geomspace(whole / 2, whole / 20_000, 60)):
        try:
            found.setdefault(_told(case, **how, memory_limit=limit), limit)
        except ValueError:  # below the least
            break
    each = list(found.values())
    return [each[round(k)] for k in np.linspace(0, len(each) - 1, min(count, len(each)))]


def measure(case: Case, options: Options) -> Result:
    """Compares gradients, then times all."""
    scans: dict[str, Scan] = {LAX: lax.scan, NESTED: nested}
    if importlib.util.find_spec("equinox") is not None and options.equinox:
        scans[EQUINOX] = equinox
    sweep = {"solver": pb.Sweep()}
    hows: dict[str, dict[str, Any]] = {NONE: {}, SWEEP: sweep}
    hows[ALL] = {**sweep, "memory_limit": 2**50}
    whole = _told(case, **hows[ALL]) or 0
    for limit in _limits(case, sweep, whole, options.limits):
        hows[f"limit {limit:,}"] = {**sweep, "memory_limit": limit}
    scans |= {name: functools.partial(pb.scan, **how) for name, how in hows.items()}
    made = {name: case.program(scan) for name, scan in scans.items()}
    want = made[LAX].call()
    errors = {name: programs.check_equal(want, p.call(), 1e-3, name) for name, p in made.items()}
    found = sides.raced(made, LAX, options)
    for name, entry in found.items():
        told = _told(case, **hows[name]) if name in hows else None
        entry |= {"told_bytes": told, "difference": errors[name]}
    return {
        "length": case.length,
        "carry_bytes": sum(a.nbytes for a in jax.tree.leaves(case.carry)),
        "sides": found,
    }


def text(result: Result) -> str:
    """A table for each program."""
    parts = []
    for name, entry in result["points"].items():
        rows = []
        for side, found in entry["sides"].items():
            pair, told = found["comparison"], found["told_bytes"]
            speed = ["", ""] if pair is None else [tables.medians(pair)[1], tables.speedup(pair)]
            told = "" if told is None else f"{told / found['temp_bytes']:.2f}"
            rows.append([side, tables.size(found["temp_bytes"]), told, *speed])
        header = ["", "temporary", "told / used", "time", "lax.scan / it [95 %]"]
        parts.append(f"{name}\n{tables.table(header, rows)}")
    return "\n\n".join(parts)


def draw(result: Result) -> dict[str, Figure]:
    """Time against memory, both over those of `lax.scan`."""
    entries = result["points"]
    figure = figures.new(4 * len(entries), 3.6)
    for k, (name, entry) in enumerate(entries.items()):
        axes = figure.add_subplot(1, len(entries), k + 1)
        drawn = entry["sides"]
        at = {
            side: (found["temp_bytes"] / 1e6, 1 / found["comparison"]["speedup"])
            for side, found in drawn.items()
            if found["comparison"] is not None
        }
        at[LAX] = drawn[LAX]["temp_bytes"] / 1e6, 1.0
        ours = sorted(p for side, p in at.items() if side.startswith("limit") or side == ALL)
        axes.plot(*zip(*ours, strict=True), "o-", label="memory_limit=")
        for side, marker in ((LAX, "s"), (NESTED, "^"), (EQUINOX, "v"), (NONE, "*"), (SWEEP, "P")):
            if side in at:
                axes.plot(*at[side], marker, markersize=9, label=side)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("temporary memory, MB")
        axes.set_ylabel("time over lax.scan's" if k == 0 else "")
        axes.set_title(name)
        axes.legend(fontsize=7)
    return {"": figure}


BENCH = Bench(
    "memory",
    __doc__,
    baseline="jax.lax.scan",
    points=points,
    measure=measure,
    rows=Named("points"),
    text=text,
    draw=draw,
    options=(
        Option("programs", list(CASES), choices=list(CASES)),
        Option("T", [200_000, 10_000, 30_000], "steps of each", kind=int),
        Option("limits", 10, "limits of ours"),
        Option("equinox", True, "whether equinox takes part", kind=lambda v: v != "no"),
        Option("seed", 0),
        *racing(5, 2, 20.0),
    ),
    quick={"T": [2000, 500, 1000], "limits": 2},
    fixed=("seed", "T"),
)
