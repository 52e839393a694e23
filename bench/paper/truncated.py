"""Truncated back-propagation through time, by hand and by `Truncated`, beside the whole gradient.

The gradient by the weights of an Elman network of a loss at every step. By hand: a loop over
windows, in each of which `jax.grad` of a `lax.scan` begins with the carry that the one before left.
Sliding windows are not written by hand: a gradient for each step would be needed. Both exact
gradients stand beside: `jax.grad` of `lax.scan`, and `Sweep`.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import parscan_bp as pb
from bench.shared import programs, tables, timing
from bench.shared.bench import Bench, Named, Option, Options, Result, effort, racing

WHOLE, BY_HAND, GRAD = "jax.grad(lax.scan)", "by hand", "grad"
ALLOWED = 1e-4


@dataclasses.dataclass(frozen=True)
class Size:
    """n steps in windows of k, of H units, and the batch."""

    n: int
    k: int
    h: int
    batch: int


def points(options: Options) -> dict[str, Size]:
    """All sizes, windows that divide the steps."""
    sizes = itertools.product(options.n, options.window, options.hidden, options.batch)
    found = [Size(*size) for size in sizes]
    return {f"n={s.n} k={s.k} H={s.h} B={s.batch}": s for s in found if s.n % s.k == 0}


def step(w: jax.Array, h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """An Elman cell, and its loss."""
    new = jnp.tanh(h @ w + x)
    return new, jnp.sum(new**2)


def whole(scan: Callable[..., Any], w: jax.Array, c: jax.Array, xs: jax.Array) -> jax.Array:
    """The gradient through a scan of all steps."""
    return jax.grad(lambda w: jnp.sum(scan(functools.partial(step, w), c, xs)[1]))(w)


def by_hand(k: int, w: jax.Array, c: jax.Array, xs: jax.Array) -> jax.Array:
    """The truncated gradient as it is written, a window at a time."""

    def window(carry, xs):
        c, total = carry

        def loss(w):
            last, losses = lax.scan(functools.partial(step, w), c, xs)
            return jnp.sum(losses), last

        slope, last = jax.grad(loss, has_aux=True)(w)
        return (last, total + slope), None

    windows = xs.reshape(-1, k, *xs.shape[1:])
    return lax.scan(window, (c, jnp.zeros_like(w)), windows)[0][1]


def measure(size: Size, options: Options) -> Result:
    """Compares what is to be equal, and races all gradients.

    Raises:
        FloatingPointError: gradients that are to be equal are not.
    """
    rng = np.random.default_rng(options.seed)
    draw = lambda *shape: jnp.asarray(rng.standard_normal(shape, np.float32))  # noqa: E731
    args = draw(size.h, size.h) / size.h**0.5, draw(size.batch, size.h)
    args = *args, draw(size.n, size.batch, size.h)
    solvers = (pb.Sweep(), pb.Truncated(size.k), pb.Truncated(size.k, sliding=True))
    gradients = {
        WHOLE: functools.partial(whole, lax.scan),
        BY_HAND: functools.partial(by_hand, size.k),
        **{str(s): functools.partial(whole, functools.partial(pb.scan, solver=s)) for s in solvers},
    }
    made = {name: programs.build(f, *args) for name, f in gradients.items()}
    values = {name: program.call() for name, program in made.items()}
    sweep, windows, sliding = map(str, solvers)
    programs.check_equal(values[WHOLE], values[sweep], ALLOWED, f"{sweep}, ")
    programs.check_equal(values[BY_HAND], values[windows], ALLOWED, f"{windows}, ")
    sides = {name: {GRAD: program.call} for name, program in made.items()}
    others = {name: side for name, side in sides.items() if name != WHOLE}
    outcome = timing.race(sides[WHOLE], others, **effort(options))
    size_of = float(jnp.linalg.norm(values[WHOLE]))
    entry: Result = {"size": dataclasses.asdict(size), "gradients": {}}
    entry["gradients"] = {
        name: {
            "comparison": outcome.compare(name, GRAD).to_json(),
            "temp_bytes": made[name].temp_bytes,
            "cut_off": float(jnp.linalg.norm(values[name] - values[WHOLE])) / size_of,
        }
        for name in others
    }
    names = {BY_HAND: BY_HAND, sweep: "Sweep", windows: "Truncated", sliding: "sliding"}
    entry["gradients"] = {names[name]: told for name, told in entry["gradients"].items()}
    return {**entry, "temp_bytes": made[WHOLE].temp_bytes}


def text(result: Result) -> str:
    """A line for each size: speedups, memory, how far truncated gradients are off."""
    kinds = [BY_HAND, "Truncated", "sliding", "Sweep"]
    header = ["size", *kinds, "MB: whole", *kinds, "off: Truncated", "sliding"]
    rows = []
    for name, entry in result["points"].items():
        told = [entry["gradients"][kind] for kind in kinds]
        times = [f"{t['comparison']['speedup']:.2g}" for t in told]
        memory = [f"{b / 1e6:.2g}" for b in (entry["temp_bytes"], *(t["temp_bytes"] for t in told))]
        off = [f"{entry['gradients'][kind]['cut_off']:.1e}" for kind in ("Truncated", "sliding")]
        rows.append([name, *times, *memory, *off])
    title = f"speedup over {WHOLE}; temporary memory; distance from the whole gradient, relative"
    return "\n".join([title, tables.table(header, rows)])


BENCH = Bench(
    "truncated",
    __doc__,
    baseline="jax.grad of lax.scan, the whole gradient",
    points=points,
    measure=measure,
    rows=Named("points"),
    text=text,
    options=(
        Option("n", [1000], "steps"),
        Option("window", [10, 50], "steps of a window"),
        Option("hidden", [8, 32, 128], "units"),
        Option("batch", [1, 16], "rows"),
        Option("seed", 0),
        *racing(15, 5, 3.0),
    ),
    quick={"n": [8], "window": [4], "hidden": [3], "batch": [2]},
    fixed=("seed",),
)
