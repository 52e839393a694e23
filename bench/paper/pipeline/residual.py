"""A residual net that learns CIFAR-10, by stale pipelines: DSP's Table 1 and figure 3.

Settings are those of its section 5, where it states them: batches of 128, momentum 0.9, weight
decay, a rate of 0.01 or 0.1 that is divided by ten at a half and at three quarters, images shifted
and mirrored. What is cut for a CPU: six residual units in place of 54, 10,000 images of 16 x 16 in
place of 50,000 of 32 x 32, and a tenth of the epochs.

    python -m bench residual --data FOLDER      CIFAR-10's binary files
    python -m bench residual                    generated images
"""

import dataclasses
import pathlib

import numpy as np
import optax
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from bench.paper.pipeline import accuracy, report, tasks
from bench.paper.pipeline.figures import plain_numbers
from bench.shared import figures, pages, tables
from bench.shared.bench import Bench, Named, Option, Options, Result

SCHEDULES = ("BP", "FR", "DSP(1,1,0;4,2,0)", "DSP(2,2,0;6,3,0)", "DSP(3,3,0;10,5,0)")
DROPS = (0.5, 0.75)
"""Where the rate is divided by ten, as parts of a run."""


def points(options: Options) -> dict[str, tuple[str, float]]:
    """Each schedule at each rate."""
    return {point_name(n, rate): (n, rate) for rate in options.rates for n in SCHEDULES}


def point_name(schedule: str, rate: float) -> str:
    """As entries are named."""
    return f"{schedule}, rate {rate:g}"


def measure(point: tuple[str, float], options: Options) -> Result:
    """Trains once for each seed."""
    name, rate = point
    schedule, blocks = accuracy.SCHEDULES[name]
    task = dataclasses.replace(tasks.task_of("images", options), jitter=options.jitter)
    steps = options.epochs * (len(task.train.labels) // options.batch)
    made = optimiser(rate, options, steps)
    seeds = range(options.seeds)
    runs = [accuracy.run(task, schedule, made, blocks, seed, options) for seed in seeds]
    return {"schedule": name, "rate": rate, "runs": runs}


def optimiser(rate: float, options: Options, steps: int) -> optax.GradientTransformation:
    """SGD with momentum and weight decay, whose rate falls twice in so many steps."""
    falls = optax.piecewise_constant_schedule(rate, {round(part * steps): 0.1 for part in DROPS})
    decay = optax.add_decayed_weights(options.weight_decay)
    return optax.chain(decay, optax.sgd(falls, momentum=options.momentum))


def best(result: Result, schedule: str, rate: float) -> list[float]:
    """The best test accuracy of each seed."""
    return accuracy.best(result["points"][point_name(schedule, rate)]["runs"])


def _table(result: Result) -> tuple[list[str], list[list[str]]]:
    rates = result["settings"]["rates"]
    rows: dict[str, list[str]] = {}
    for entry in result["points"].values():
        best, spread, loss = report.learned(entry["runs"])
        rows.setdefault(entry["schedule"], []).append(f"{best} ({spread}), {loss}")
    return ["schedule", *(f"rate {rate:g}" for rate in rates)], [[n, *c] for n, c in rows.items()]


def text(result: Result) -> str:
    """A row a schedule: the best test accuracy, how far seeds are apart, the last training loss."""
    return tables.table(*_table(result))


def page(result: Result) -> str:
    """The same for a page."""
    return pages.markdown(*_table(result))


def draw(result: Result) -> dict[str, Figure]:
    """Training loss and test accuracy by epoch, a row a rate: means of the seeds."""
    rates = result["settings"]["rates"]
    figure = figures.new(8.0, 0.6 + 2.4 * len(rates))
    rows = figure.subplots(len(rates), 2, squeeze=False)
    for rate, (loss, score) in zip(rates, rows, strict=True):
        for entry in result["points"].values():
            if entry["rate"] == rate:
                _curve(loss, entry, "losses")
                _curve(score, entry, "accuracies")
        loss.set(xlabel="epoch", ylabel="training loss", yscale="log")
        loss.set_title(f"learning rate {rate:g} at first", size=10)
        plain_numbers(loss.yaxis)
        score.set(xlabel="epoch", ylabel="test accuracy")
        score.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    handles, labels = rows[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    return {"": figure}


def _curve(axes: Axes, entry: Result, key: str) -> None:
    curves = np.array([run[key] for run in entry["runs"]], float)
    epochs = np.arange(1, curves.shape[1] + 1)
    axes.plot(epochs, curves.mean(0), label=entry["schedule"], lw=1.2)
    axes.fill_between(epochs, curves.min(0), curves.max(0), alpha=0.15, lw=0)


BENCH = Bench(
    "residual",
    __doc__,
    baseline="back-propagation",
    points=points,
    measure=measure,
    rows=Named("points"),
    text=text,
    draw=draw,
    facts=lambda options: {
        "settings": {"images": "generated" if options.data is None else "CIFAR-10"}
    },
    options=(
        Option("data", None, "folder of CIFAR-10's binary files", kind=pathlib.Path),
        Option("seeds", 2, "runs of each schedule"),
        Option("epochs", 30),
        Option("batch", 128),
        Option("rates", [0.01, 0.1], "learning rates at first"),
        Option("momentum", 0.9),
        Option("weight-decay", 5e-4),
        Option("train-images", 10000),
        Option("test-images", 2000),
        Option("size", 16, "of the images, a divisor of 32"),
        Option("jitter", 2, "pixels by which images are shifted at most"),
        Option("width", 16, "channels of the first residual unit"),
    ),
    fixed=("seeds", "epochs", "batch", "train-images", "size", "width"),
    quick={
        "rates": [0.01],
        "seeds": 1,
        "epochs": 2,
        "batch": 8,
        "train_images": 80,
        "test_images": 20,
        "size": 8,
        "width": 2,
    },
)
