"""Late gradients without a remedy, by optimiser; DSP with each remedy; guessed gradients.

The plain net of nine layers learns spoken digits, with gradients that are 0 to 16 steps late, by
SGD with momentum, Adam, Muon, and NAdam with a long momentum. Then DSP trains it in three blocks:
as it is, and with each remedy, which is told how late the forward pass of a block is; and blocks
that foresee their gradients do (DNI). Without `--digits` tones are generated.
"""

import pathlib
from collections.abc import Mapping

import numpy as np
import optax
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from bench.paper.pipeline import accuracy, difference, dni, remedies, tasks
from bench.paper.pipeline.figures import plain_numbers
from bench.paper.pipeline.report import DIVERGED
from bench.shared import figures, pages, tables
from bench.shared.bench import Bench, Named, Option, Options, Points, Result
from parscan_bp import pipeline

DELAYS = (0, 1, 2, 8, 16)
OPTIMISERS: Mapping[str, remedies.Make] = {
    **remedies.OPTIMISERS,
    "NAdam": lambda rate: optax.nadam(rate, b1=0.99),
}
"""A long momentum with Nesterov's look-ahead is what Ajanthan et al. put against delays (Nesterov
method for asynchronous pipeline parallel optimization, ICML 2025)."""
RATES = {**remedies.RATES, "NAdam": remedies.RATES["Adam"]}
ONE, DIVIDED = "one rate", "rate / m"
BLOCKS: Mapping[str, tuple[pipeline.Remedy, ...]] = {
    ONE: (),
    DIVIDED: remedies.REMEDIES["learning rate"],
    **{name: remedies.REMEDIES[name] for name in ("compensation", "feedback", "prediction")},
}
"""Remedies of late blocks, by side."""
_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44")


def points(options: Options) -> Points:
    """One for each optimiser, and for each rate and queue of DSP."""
    late = [(rate, name) for rate in options.digits_lr for name in ("BP", *difference.SHOWN)]
    return {
        **{name: ("optimisers", name) for name in OPTIMISERS},
        **{f"{name} rate {rate:g}": ("blocks", name, rate) for rate, name in late},
        **{f"DNI rate {rate:g}": ("DNI", rate) for rate in options.digits_lr},
    }


def measure(point: tuple, options: Options) -> Result:
    """Trains once for each seed and side."""
    task = tasks.task_of("digits", options)
    if point[0] == "optimisers":
        _, name = point
        optimiser = OPTIMISERS[name](RATES[name])
        late = {d: pipeline.stale(optimiser, d) if d else optimiser for d in DELAYS}
        runs = {str(d): remedies.train_all(task, own, False, options) for d, own in late.items()}
        return {"part": "optimisers", "optimiser": name, "rate": RATES[name], "runs": runs}
    if point[0] == "DNI":
        _, rate = point
        optimiser = accuracy.sgd(rate, options.momentum)
        guessed = [dni.train(task, 3, optimiser, seed, options) for seed in range(options.seeds)]
        return {"part": "blocks", "schedule": "DNI", "rate": rate, "runs": {ONE: guessed}}
    _, name, rate = point
    schedule, blocks = accuracy.SCHEDULES[name]
    optimiser = accuracy.sgd(rate, options.momentum)
    runs = {
        side: [
            accuracy.run(task, schedule, optimiser, blocks, seed, options, own)
            for seed in range(options.seeds)
        ]
        for side, own in BLOCKS.items()
        if not own or isinstance(schedule, pipeline.DSP)
    }
    return {"part": "blocks", "schedule": name, "rate": rate, "runs": runs}


def of_part(result: Result, part: str) -> list[Result]:
    """The entries of "optimisers" or of "blocks"."""
    return [entry for entry in result["points"].values() if entry["part"] == part]


def _optimisers(result: Result) -> tuple[list[str], list[list[str]]]:
    rows = []
    for entry in of_part(result, "optimisers"):
        cells = []
        for runs in entry["runs"].values():
            mean = remedies.mean_loss(runs)
            tested = np.mean([run["accuracy"] for run in runs])
            cells.append(DIVERGED if mean is None else f"{mean:.3f}, {tested:.0%}")
        rows.append([f"{entry['optimiser']} {entry['rate']:g}", *cells])
    return ["training loss, test accuracy", *(f"{d} steps late" for d in DELAYS)], rows


def _blocks(result: Result) -> tuple[list[str], list[list[str]]]:
    rows = []
    for entry in of_part(result, "blocks"):
        cells = []
        for side in BLOCKS:
            own = accuracy.best(entry["runs"][side]) if side in entry["runs"] else []
            cells.append(f"{np.mean(own):.1%} ({max(own) - min(own):.1%})" if own else "")
        rows.append([f"{entry['schedule']}, rate {entry['rate']:g}", *cells])
    return ["best test accuracy (of seeds: largest less smallest)", *BLOCKS], rows


def text(result: Result) -> str:
    """Both tables."""
    made = (_optimisers(result), _blocks(result))
    return "\n\n".join(tables.table(head, rows) for head, rows in made if rows)


def page(result: Result) -> str:
    """Both, for a page."""
    return "\n\n".join(pages.markdown(*made) for made in (_optimisers(result), _blocks(result)))


def draw(result: Result) -> Mapping[str, Figure]:
    """The last loss and the test accuracy of each optimiser, by delay."""
    entries = of_part(result, "optimisers")
    if not entries:
        return {}
    figure = figures.new(8, 3.4)
    loss, tested = figure.subplots(1, 2)
    for entry, colour in zip(entries, _COLOURS, strict=False):
        places = range(len(DELAYS))
        losses = [[run["loss"] or np.nan for run in runs] for runs in entry["runs"].values()]
        accuracies = [[run["accuracy"] for run in runs] for runs in entry["runs"].values()]
        for axes, values in ((loss, losses), (tested, accuracies)):
            axes.plot(places, np.mean(values, 1), "o-", color=colour, label=entry["optimiser"])
            least, most = np.min(values, 1), np.max(values, 1)
            axes.fill_between(places, least, most, color=colour, alpha=0.12, lw=0)
    for axes in (loss, tested):
        axes.set_xticks(range(len(DELAYS)), list(map(str, DELAYS)))
        axes.set(xlabel="steps by which gradients are late")
    loss.set(yscale="log", ylabel="last training loss; no point: diverged")
    plain_numbers(loss.yaxis)
    tested.set(ylabel="test accuracy", ylim=(0, 1))
    tested.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    loss.legend(fontsize=8)
    return {"": figure}


BENCH = Bench(
    "delays",
    __doc__,
    baseline="gradients that are not late; DSP with one learning rate",
    points=points,
    measure=measure,
    rows=Named("points"),
    text=text,
    draw=draw,
    options=(
        Option("digits", None, "folder of spoken digits", kind=pathlib.Path),
        Option("seeds", 3),
        Option("epochs", 6, "of DSP"),
        Option("batch", 64),
        Option("digits-lr", [0.002, 0.02], "learning rates of DSP"),
        Option("momentum", 0.9),
        Option("width", 8, "8 times as many hidden units"),
        Option("steps", 300, "of the optimisers"),
    ),
    fixed=("seeds", "epochs", "batch", "momentum", "width", "steps"),
    quick={"seeds": 1, "epochs": 1, "batch": 8, "digits_lr": [0.002], "width": 2, "steps": 8},
    facts=lambda options: {
        "settings": {"sounds": "generated" if options.digits is None else "recorded"}
    },
)
