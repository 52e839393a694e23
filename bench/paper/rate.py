"""How fast the gradient falls with the length of a run, by stale pipelines (DSP, Corollary 1).

With a learning rate of c N^-1/2 the mean squared gradient over the N steps of a run is O(N^-1/2),
whatever the staleness. Three blocks tanh(x W) of four units learn from noisy batches of 4 of 64
examples, by `parscan_bp.pipeline.run`; back-propagation does the same beside.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure

from bench.paper.pipeline.accuracy import SCHEDULES
from bench.shared import figures, tables
from bench.shared.bench import Bench, Named, Option, Options, Result
from parscan_bp import pipeline

SHOWN = ("BP", "DSP(1,1,0;4,2,0)", "DSP(2,2,0;6,3,0)", "DSP(3,3,0;10,5,0)")
EXAMPLES, UNITS, BATCH, BLOCKS, LOOKS = 64, 4, 4, 3, 100
SCALE = 2.0
"""c, the learning rate of a single step."""


def measure(name: str, options: Options) -> Result:
    """Trains once for each length."""
    schedule, _ = SCHEDULES[name]
    return {"runs": [{"steps": n, "squared": mean_squared(schedule, n)} for n in options.lengths]}


def mean_squared(schedule: pipeline.Schedule, steps: int) -> float:
    """Of the whole gradient, over all examples, at weights along a run."""
    rng = np.random.default_rng(2)
    x = rng.standard_normal((EXAMPLES, UNITS))
    wanted = np.tanh(x @ rng.standard_normal((UNITS, UNITS)) / 2)
    first = np.random.default_rng(1).standard_normal((BLOCKS, UNITS, UNITS))
    params = [jnp.asarray(0.8 * np.eye(UNITS) + 0.1 * own, jnp.float32) for own in first]
    rows = np.random.default_rng(3).integers(EXAMPLES, size=(steps, BATCH))
    x, wanted = x.astype(np.float32), wanted.astype(np.float32)
    every = max(1, steps // LOOKS)
    seen: dict[int, dict[int, Any]] = {}

    def look(task: pipeline.Task, pipe: Any) -> None:
        if task.kind == "update" and task.batch % every == 0:
            seen.setdefault(task.batch, {})[task.block] = pipe.newest(task.block)

    pipeline.run(
        [block] * BLOCKS,
        schedule,
        optax.sgd(SCALE / np.sqrt(steps)),
        loss,
        params,
        [(x[own], wanted[own]) for own in rows],
        executor=pipeline.Simulated(observe=look),
    )

    @jax.jit
    def squared(params):
        def value(params):
            y = x
            for w in params:
                y = block(w, y)
            return loss(y, wanted)

        return sum(jnp.sum(g**2) for g in jax.grad(value)(params))

    return float(np.mean([squared([own[k] for k in range(BLOCKS)]) for own in seen.values()]))


def block(w: jax.Array, x: jax.Array) -> jax.Array:
    """One of the three."""
    return jnp.tanh(x @ w)


def loss(y: jax.Array, wanted: jax.Array) -> jax.Array:
    """Mean squared error."""
    return jnp.mean((y - wanted) ** 2)


def exponent(runs: Sequence[Result]) -> float:
    """The slope of the logarithm over that of N, by least squares."""
    steps, squared = ([run[key] for run in runs] for key in ("steps", "squared"))
    return float(np.polyfit(np.log(steps), np.log(squared), 1)[0])


def text(result: Result) -> str:
    """A row a schedule."""
    rows = [
        [name, *(f"{run['squared']:.4f}" for run in own["runs"]), f"N^{exponent(own['runs']):.2f}"]
        for name, own in result["schedules"].items()
    ]
    lengths = (f"N={n}" for n in result["settings"]["lengths"])
    return tables.table(["mean squared gradient", *lengths, "falls as"], rows)


def draw(result: Result) -> dict[str, Figure]:
    """The same over N, with N^-1/2 from where back-propagation begins."""
    figure = figures.new(5.0, 3.6)
    axes = figure.subplots()
    for name, own in result["schedules"].items():
        steps, squared = ([run[key] for run in own["runs"]] for key in ("steps", "squared"))
        axes.loglog(steps, squared, "o-", label=name, lw=1.2, ms=4)
    steps = np.asarray(result["settings"]["lengths"], float)
    first = next(iter(result["schedules"].values()))["runs"][0]["squared"]
    axes.loglog(steps, first * np.sqrt(steps[0] / steps), "k:", label="N^-1/2 (Corollary 1)")
    axes.set(xlabel="N, steps of a run", ylabel="mean squared gradient")
    axes.set_title("a rate of 2 N^-1/2, three blocks", size=10)
    axes.legend(fontsize=7)
    return {"": figure}


BENCH = Bench(
    "rate",
    __doc__,
    baseline="back-propagation",
    points=lambda options: {name: name for name in SHOWN},
    measure=measure,
    rows=Named("schedules"),
    text=text,
    draw=draw,
    options=(Option("lengths", [100, 400, 1600, 6400], "N, steps of a run"),),
    fixed=("lengths",),
    quick={"lengths": [20, 40]},
)
