"""The figures of the pipeline bench."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from bench.paper.pipeline import remedies, speed
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
    """Losses by epoch, and by modelled time: the mean of the seeds, and their spread."""
    settings = list(dict.fromkeys((entry["task"], entry["rate"]) for entry in entries))
    if not settings:
        return None
    figure = figures.new(8.4, 0.6 + 1.9 * len(settings))
    rows = figure.subplots(len(settings), 3, squeeze=False)
    for (task, rate), (loss, time, accuracy) in zip(settings, rows, strict=True):
        for entry in entries:
            if (entry["task"], entry["rate"]) == (task, rate) and entry["schedule"] in _SHOWN:
                _curves(entry, loss, time, accuracy)
        loss.set(xlabel="epoch", ylabel="training loss", title=f"{task}, rate {rate:g}")
        time.set(xlabel="modelled time in F", ylabel="training loss")
        accuracy.set(xlabel="epoch", ylabel="test accuracy")
    handles, labels = rows[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    return figure


def _curves(entry: Result, loss, time, accuracy) -> None:
    colour, style = _SHOWN[entry["schedule"]]
    curves = [
        np.array([np.nan if value is None else value for value in run["losses"]])
        for run in entry["runs"]
    ]
    epochs = np.arange(1, len(curves[0]) + 1)
    seconds = epochs * entry["batches_per_epoch"] * entry["time_per_batch"]
    for axes, x in ((loss, epochs), (time, seconds)):
        axes.plot(x, np.mean(curves, 0), style, color=colour, label=entry["schedule"])
        axes.set_yscale("log")
    loss.fill_between(epochs, np.min(curves, 0), np.max(curves, 0), color=colour, alpha=0.15, lw=0)
    accuracies = [run["accuracies"] for run in entry["runs"]]
    accuracy.plot(epochs, np.mean(accuracies, 0), style, color=colour)


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
    axes.plot(at, at, color="black", lw=0.8, label="all blocks always slow")
    axes.set(xlabel="slow down of a block, %", ylabel="slow down of the pipeline, %", ylim=(0, 160))
    axes.set_title("modelled (circles) and DSP's Table 2 (crosses; FR leaves at 359 %)", size=10)
    axes.legend(fontsize=8)
    return figure


def _difference(entries: list[Result]) -> Figure | None:
    """The norm of the difference at each block, and the way that Lemma 1 bounds it by."""
    if not entries:
        return None
    figure = figures.new(4 * len(entries), 3.6)
    rows = figure.subplots(1, len(entries), sharey=True, squeeze=False)
    for entry, axes in zip(entries, rows[0], strict=True):
        at = [sample["batch"] for sample in entry["samples"]]
        for k in range(len(entry["samples"][0]["difference"])):
            apart = np.array([sample["difference"][k] for sample in entry["samples"]])
            way = np.array([sample["way"][k] for sample in entry["samples"]])
            moved = way > 0
            constant = np.max(apart[moved] / way[moved]) if moved.any() else 0.0
            axes.plot(at, apart, color=_BLOCKS[k], label=f"block {k}")
            axes.plot(at, constant * way, ":", color=_BLOCKS[k])
        axes.axvline(entry["decay_at"], color="grey", lw=0.8)
        axes.set(xlabel="batch", yscale="log", title=entry["schedule"])
    rows[0][0].set_ylabel("|G_DSP - G_BP| (dotted: Lemma 1)")
    rows[0][0].legend(fontsize=8)
    return figure


def _remedies(entries: list[Result]) -> Figure | None:
    """The share of the gap that each remedy closes; a bar that is cut has its value written on."""
    if not entries:
        return None
    names, least, most = [name for name in remedies.REMEDIES if name != "none"], -1, 1.3
    figure = figures.new(7, 1.2 + 0.55 * len(entries))
    axes = figure.subplots()
    for j, name in enumerate(names):
        shares = [remedies.closed(entry["runs"], name) for entry in entries]
        shown = [np.nan if share is None else share for share in shares]
        place = np.arange(len(entries)) + (j - 2) * 0.16
        axes.barh(place, shown, 0.16, label=name, color=(*_BLOCKS, "#aa3377")[j])
        for y, share in zip(place, shown, strict=True):
            if share < least or share > most:
                how = {"ha": "left" if share < least else "right", "va": "center_baseline"}
                x = np.clip(share, least + 0.01, most - 0.01)
                axes.text(x, y, f"{share:.1f}", color="white", fontsize=7, **how)
    labels = [_label(entry) for entry in entries]
    axes.set_yticks(range(len(entries)), labels)
    axes.invert_yaxis()
    axes.axvline(0, color="black", lw=0.8)
    axes.set(xlim=(least, most), xlabel="share of the gap in training loss that is closed")
    axes.legend(fontsize=8, loc="lower right")
    return figure


def _label(entry: Result) -> str:
    diverged = ", diverged" if remedies.mean_loss(entry["runs"]["none"]) is None else ""
    return f"{entry['optimiser']}, d={entry['delay']}{diverged}"
