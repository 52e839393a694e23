"""Where associativity wins on a CPU today: products that are used more than once.

No parallel hardware is needed where a product is made once and used again. Tied Jacobians: a
linear differential equation seen every few steps, and a stack of layers with tied weights; their
powers take log n products. The adjoint of every sliding window of a chain: three products each,
however long the window is. One Jacobian of a long chain changes: log n products are made again.
The baselines are what one writes without them: `jax.lax.scan` and `jax.grad` compiled, all
windows swept at once, and the whole adjoint swept again.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from matplotlib.figure import Figure

from bench.paper.product_tree import ProductTree
from bench.paper.products import power, sliding_products
from bench.shared import figures, programs, tables, timing
from bench.shared.bench import Bench, Named, Option, Options, Result, effort, racing
from parscan_bp.operators import Banded, Dense

SWEPT, SHARED = "swept", "shared"


@dataclasses.dataclass(frozen=True)
class Case:
    """The same result twice.

    Attributes:
        name: what is computed, and the sizes.
        kind: of reuse; one colour in the figure.
        swept: without reuse; what it returns is checked.
        shared: with it.
        target: the speedup that is asked for, if one is.
        allowed: difference of the two, relative to the largest entry.
    """

    name: str
    kind: str
    swept: timing.Call
    shared: timing.Call
    target: float | None
    allowed: float


def points(options: Options) -> dict[str, Case]:
    """The cases, each with random numbers of its own."""
    if options.quick:
        makers = [(linear_equation, 8, 64, 16), (tied_stack, 8, 32, 2)]
        makers += [(sliding_windows, 64, 8), (one_change, 100)]
    else:
        makers = [(linear_equation, points, 16384, 256) for points in (64, 256)]
        makers += [(tied_stack, 64, 4096, batch) for batch in (1, 16)]
        makers += [(sliding_windows, 16384, window) for window in (256, 1024)]
        makers += [(one_change, length) for length in (4096, 65536)]
    cases = [make(np.random.default_rng(options.seed), *sizes) for make, *sizes in makers]
    return {case.name: case for case in cases}


def linear_equation(rng: np.random.Generator, points: int, steps: int, every: int) -> Case:
    """Which initial state explains observations of an advected, diffusing field: loss and gradient.

    x_(t+1) = B x_t with a tridiagonal B, observed every few steps. Shared: B^every by squaring,
    then one dense product for each observation, forwards and backwards.
    """
    diffusion, advection = 0.2, 0.3
    bands = np.empty((3, points), np.float32)
    bands[0] = diffusion + advection / 2
    bands[1] = 1 - 2 * diffusion
    bands[2] = diffusion - advection / 2
    seen = jnp.asarray(rng.standard_normal((steps // every, points)), jnp.float32)
    start = jnp.asarray(rng.standard_normal(points), jnp.float32)

    def swept(start, bands, seen):
        step = Banded(bands, 1)

        def observe(x, wanted):
            x, _ = lax.scan(lambda x, _: (step.matvec(x), None), x, length=every)
            return x, jnp.sum((x - wanted) ** 2)

        return lax.scan(observe, start, seen)[1].sum()

    def shared(start, bands, seen):
        stretch = power(Banded(bands, 1), every)

        def observe(x, wanted):
            x = stretch.matvec(x)
            return x, jnp.sum((x - wanted) ** 2)

        return lax.scan(observe, start, seen)[1].sum()

    return Case(
        f"linear PDE, {points} points, {steps} steps, seen every {every}",
        "tied Jacobians",
        *_gradients((swept, shared), start, jnp.asarray(bands), seen),
        8.0 if points == 64 else None,
        1e-4,
    )


def tied_stack(rng: np.random.Generator, width: int, layers: int, batch: int) -> Case:
    """Loss and gradient, for the weights and the input, of a linear stack with tied weights."""
    weight = np.linalg.qr(rng.standard_normal((width, width)))[0]
    x, wanted = (jnp.asarray(rng.standard_normal((batch, width)), jnp.float32) for _ in range(2))

    def swept(point, wanted):
        weight, x = point
        step = lambda x, _: (Dense(weight).matvec(x), None)  # noqa: E731
        return jnp.sum((lax.scan(step, x, length=layers)[0] - wanted) ** 2)

    def shared(point, wanted):
        weight, x = point
        return jnp.sum((power(Dense(weight), layers).matvec(x) - wanted) ** 2)

    return Case(
        f"{layers} tied layers, width {width}, batch {batch}",
        "tied Jacobians",
        *_gradients((swept, shared), (jnp.asarray(weight, jnp.float32), x), wanted),
        8.0 if width == 64 else None,
        1e-3,
    )


def _gradients(losses: Sequence[Callable], *arguments: Any) -> list[timing.Call]:
    made = [programs.build(jax.value_and_grad(loss), *arguments) for loss in losses]
    return [program.call for program in made]


def sliding_windows(rng: np.random.Generator, length: int, window: int) -> Case:
    """A_k ... A_(k+window-1) c_k for every k, of 3x3 Jacobians."""
    matrices, count = _rotations(rng, length), length - window + 1
    cotangents = jnp.asarray(rng.standard_normal((count, 3)), jnp.float32)

    def swept(matrices, cotangents):
        # All windows advance together, time in the last axis: vectorised, nothing copied.
        lanes = matrices.transpose(1, 2, 0)

        def step(i, v):
            a = lax.dynamic_slice_in_dim(lanes, window - 1 - i, count, axis=2)
            return sum(a[:, k] * v[k] for k in range(3))

        return lax.fori_loop(0, window, step, cotangents.T).T

    def shared(matrices, cotangents):
        return sliding_products(Dense(matrices), window).matvec(cotangents)

    made = [programs.build(f, matrices, cotangents) for f in (swept, shared)]
    return Case(
        f"adjoints of all windows of {window}, {length} maps of 3x3",
        "sliding windows",
        *(program.call for program in made),
        4.0,
        1e-3,
    )


def one_change(rng: np.random.Generator, length: int) -> Case:
    """The adjoint of a chain of 3x3 Jacobians of which one has changed, from end to end."""
    matrices, new = _rotations(rng, length), _rotations(rng, 1)[0]
    cotangent, place = jnp.asarray(rng.standard_normal(3), jnp.float32), jnp.int32(length // 3)

    def sweep(matrices, place, new, v):
        matrices = lax.dynamic_update_index_in_dim(matrices, new, place, axis=0)
        step = lambda v, a: (jnp.sum(a * v, axis=1), None)  # noqa: E731
        return lax.scan(step, v, matrices, reverse=True)[0]

    def change(tree, place, new, v):
        tree = tree.update(place, Dense(new))
        return tree, tree.product.matvec(v)

    sweep = jax.jit(sweep)
    change = jax.jit(change, donate_argnums=0)
    # A donated buffer must not occur twice, so that none is shared with `matrices`.
    kept = [jax.tree.map(jnp.copy, jax.jit(ProductTree.of)(Dense(matrices)))]

    def shared():
        kept[0], adjoint = change(kept[0], place, new, cotangent)
        return adjoint

    return Case(
        f"one of {length} maps of 3x3 changes",
        "one change",
        lambda: sweep(matrices, place, new, cotangent),
        shared,
        None,
        1e-3,
    )


def _rotations(rng: np.random.Generator, count: int) -> jax.Array:
    """Orthogonal matrices: products of any length stay of size 1."""
    return jnp.asarray(np.linalg.qr(rng.standard_normal((count, 3, 3)))[0], jnp.float32)


def measure(case: Case, options: Options) -> Result:
    """Checks and times a case.

    Raises:
        FloatingPointError: the shared product gives another result.
    """
    error = programs.check_equal(case.swept(), case.shared(), case.allowed, case.name)
    sides = ({"result": call} for call in (case.swept, case.shared))
    outcome = timing.race(next(sides), {SHARED: next(sides)}, **effort(options))
    return {
        "kind": case.kind,
        "target": case.target,
        "error": error,
        "allowed": case.allowed,
        "comparison": outcome.compare(SHARED, "result").to_json(),
    }


def draw(result: Result) -> dict[str, Figure]:
    """A bar for each case, in the colour of its kind."""
    rows = result["cases"]
    figure = figures.new(8.5, 0.4 * len(rows) + 1.4)
    axes = figure.subplots()
    kinds = list(dict.fromkeys(row["kind"] for row in rows.values()))
    for place, row in enumerate(reversed(rows.values())):
        pair = row["comparison"]
        errors = [[pair["speedup"] - pair["low"]], [pair["high"] - pair["speedup"]]]
        colour = f"C{kinds.index(row['kind'])}"
        axes.barh(place, pair["speedup"], 0.7, xerr=np.abs(errors), color=colour)
        figures.mark(axes, row["target"], place)
    figures.ratios(axes, list(reversed(rows)))
    axes.set_xlabel("speedup over a sweep (black: what is asked for)")
    return {"": figure}


def text(result: Result) -> str:
    """A line for each case."""
    header = ["result", SWEPT, SHARED, "ratio [95 %]", "A/A", "asked", "difference"]
    lines = []
    for name, row in result["cases"].items():
        pair = row["comparison"]
        asked = f"{row['target']:g}x" if row["target"] else ""
        ratio = [tables.speedup(pair), f"{pair['again']:.2f}"]
        lines.append([name, *tables.medians(pair), *ratio, asked, f"{row['error']:.1e}"])
    return tables.table(header, lines)


BENCH = Bench(
    "reuse",
    __doc__,
    baseline="what one writes without them, compiled",
    points=points,
    measure=measure,
    rows=Named("cases"),
    text=text,
    options=(Option("seed", 0), *racing(15, 5, 6.0)),
    draw=draw,
)
