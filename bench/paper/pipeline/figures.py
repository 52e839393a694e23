"""The figures of the pipeline bench."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator, PercentFormatter

from bench.paper.pipeline import difference, remedies, speed
from bench.paper.pipeline.report import of_part
from bench.shared import figures
from bench.shared.bench import Result

_SHOWN = {
    "BP": ("#000000", "-"),
    "GPipe": ("#bbbbbb", "--"),
    "FR": ("#ccbb44", "-"),
    "PipeDream": ("#228833", "-"),
    "2BW": ("#66ccee", "-"),
    "DSP(1,1,0;4,2,0)": ("#4477aa", "-"),
    "DSP(2,2,0;6,3,0)": ("#aa3377", "-"),
    "DSP(3,3,0;10,5,0)": ("#ee6677", "-"),
}
_MARKS = (
    ("black", "|"),
    ("black", "o"),
    ("#4477aa", "s"),
    ("#66ccee", "s"),
    ("#228833", "^"),
    ("#ccbb44", "D"),
    ("#aa3377", "v"),
)
"""Without a delay, without a remedy, and with each of them."""
_BLOCKS = ("#4477aa", "#ee6677", "#228833", "#ccbb44")


def draw(result: Result) -> Mapping[str, Figure]:
    """A figure for each part that was measured."""
    points = result["points"]
    made = {
        "_accuracy": _accuracy(of_part(points, "accuracy")),
        "_stragglers": _stragglers(of_part(points, "stragglers")),
        "_difference": _difference(of_part(points, "difference")),
        "_remedies": _remedies(of_part(points, "remedies")),
    }
    return {name: figure for name, figure in made.items() if figure is not None}


def _accuracy(entries: list[Result]) -> Figure | None:
    """Losses by epoch and by modelled time, and accuracies: means of the seeds, and their spread.

    A curve ends with a cross where a seed diverged.
    """
    settings = sorted({(entry["task"], entry["rate"]) for entry in entries})
    if not settings:
        return None
    figure = figures.new(8.6, 0.7 + 1.8 * len(settings))
    rows = figure.subplots(len(settings), 3, squeeze=False)
    for (task, rate), (loss, time, accuracy) in zip(settings, rows, strict=True):
        for entry in entries:
            if (entry["task"], entry["rate"]) == (task, rate) and entry["schedule"] in _SHOWN:
                _curves(entry, loss, time, accuracy)
        for axes in (loss, time):
            axes.set(yscale="log", ylabel="training loss")
            plain_numbers(axes.yaxis)
        loss.set(xlabel="epoch")
        loss.set_title(f"{task}, learning rate {rate:g}", size=10)
        time.set(xlabel="modelled time in forward passes")
        accuracy.set(xlabel="epoch", ylabel="test accuracy")
        accuracy.set_ylim(bottom=0)
        accuracy.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    handles, labels = rows[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    return figure


def _curves(entry: Result, loss: Axes, time: Axes, accuracy: Axes) -> None:
    colour, style = _SHOWN[entry["schedule"]]
    curves = [
        np.array([np.nan if value is None else value for value in run["losses"]])
        for run in entry["runs"]
    ]
    mean, epochs = np.mean(curves, 0), np.arange(1, len(curves[0]) + 1)
    seconds = epochs * entry["batches_per_epoch"] * entry["time_per_batch"]
    known = np.flatnonzero(np.isfinite(mean))
    for axes, x in ((loss, epochs), (time, seconds)):
        axes.plot(x, mean, style, color=colour, label=entry["schedule"])
        if 0 < len(known) < len(mean):
            axes.plot(x[known[-1]], mean[known[-1]], "x", color=colour, ms=8)
    accuracies = [run["accuracies"] for run in entry["runs"]]
    accuracy.plot(epochs, np.mean(accuracies, 0), style, color=colour)
    for axes, seeds in ((loss, curves), (accuracy, accuracies)):
        least, most = np.min(seeds, 0), np.max(seeds, 0)
        axes.fill_between(epochs, least, most, color=colour, alpha=0.12, lw=0)


def _stragglers(entries: list[Result]) -> Figure | None:
    """The paper's Table 2 (crosses) over the model's."""
    if not entries:
        return None
    figure = figures.new(6.5, 4)
    axes = figure.subplots()
    at = [100 * s for s in entries[0]["slow_downs"]]
    for name, percent in entries[0]["percent"].items():
        colour = _SHOWN.get(name, ("#888888", "-"))[0]
        axes.plot(at, percent, "o-", color=colour, label=name)
        if name in speed.TABLE_2:
            axes.plot(at, speed.TABLE_2[name], "x:", color=colour)
    axes.plot([], [], "x:", color="#888888", label="the same in the paper's Table 2")
    axes.plot(at, at, color="black", lw=0.8, label="all blocks always slow")
    axes.set(xlabel="slow down of a block, %", ylabel="slow down of the pipeline, %", ylim=(0, 160))
    axes.set_title(
        "three blocks, event model (circles) and paper (crosses; FR goes on to 359 %)", size=10
    )
    axes.legend(fontsize=8)
    return figure


def _difference(entries: list[Result]) -> Figure | None:
    """The norm of the difference at each block, and Lemma 1's bound of it.

    The bound's constants are those of the run with the shortest queues: there it is fitted.
    """
    fitted = {entry["schedule"]: entry["samples"] for entry in entries}.get(difference.SHOWN[0])
    if fitted is None:
        return None
    constants = difference.constants(fitted)
    figure = figures.new(4 * len(entries), 3.6)
    rows = figure.subplots(1, len(entries), sharey=True, squeeze=False)
    for entry, axes in zip(entries, rows[0], strict=True):
        at = [sample["batch"] for sample in entry["samples"]]
        # At the last block both are 0, which a logarithmic axis cannot show.
        for k, constant in enumerate(constants[:-1]):
            apart, way = (
                np.array([sample[name][k] for sample in entry["samples"]])
                for name in ("difference", "way")
            )
            axes.plot(at, apart, color=_BLOCKS[k], label=f"block {k + 1} of {len(constants)}")
            axes.plot(at, constant * way, ":", color=_BLOCKS[k], label="bound of Lemma 1")
        axes.axvline(entry["decay_at"], color="grey", lw=0.8)
        how = "fitted here" if entry["samples"] is fitted else "of the first panel"
        axes.set(xlabel="batch", yscale="log")
        axes.set_title(f"{entry['schedule']}\nconstants of the bound {how}", size=10)
    rows[0][0].set_ylabel("norm of the difference of gradients")
    handles, labels = rows[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    return figure


def _remedies(entries: list[Result]) -> Figure | None:
    """The last loss with each remedy, between that without a delay and that without a remedy."""
    if not entries:
        return None
    figure = figures.new(8, 1.4 + 0.5 * len(entries))
    axes = figure.subplots()
    names = ["no delay", *remedies.REMEDIES]
    losses = [
        {name: remedies.mean_loss(entry["runs"][name]) for name in names} for entry in entries
    ]
    known = [value for own in losses for value in own.values() if value is not None]
    diverged = 3 * max(known)
    for name, (colour, marker) in zip(names, _MARKS, strict=True):
        x = [diverged if own[name] is None else own[name] for own in losses]
        # Those that would lie on each other lie below each other.
        y = np.arange(len(entries)) + (names.index(name) - 3) * 0.09
        axes.plot(x, y, marker, color=colour, label=name, ms=6)
    axes.set_yticks(range(len(entries)), [_label(entry) for entry in entries])
    axes.invert_yaxis()
    for place in np.arange(len(entries) - 1) + 0.5:
        axes.axhline(place, color="#dddddd", lw=0.8)
    axes.axvline(diverged / 1.7, color="black", lw=0.8)
    axes.set(xscale="log", xlabel="last training loss, mean of the seeds; right: diverged")
    plain_numbers(axes.xaxis, below=diverged / 2)
    figure.legend(loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    return figure


def plain_numbers(axis: Axis, below: float = np.inf) -> None:
    """0.5, 1, 2 in place of powers of ten, along a logarithmic axis."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}" if x < below else ""))
    axis.set_minor_locator(NullLocator())


def _label(entry: Result) -> str:
    return f"{entry['optimiser']}, {entry['delay']} steps late"
