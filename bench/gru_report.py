"""The table and the plot of an audio training: loss curves, and Figure 9 of the BPPSA paper."""

import pathlib
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from bench import figures, rnn_report, tables, timing

Result = dict[str, Any]

SIDES = {rnn_report.BASELINE: "baseline", rnn_report.OURS: "candidate"}
_COLOURS = {rnn_report.BASELINE: "#cc3311", rnn_report.OURS: "#0077bb"}
_SMOOTHED = 20
PARTS = {"forward": "#bbbbbb", "overhead": "#ee7733", "backward": "#0077bb"}


def breakdown(phases: dict[str, Any], side: str) -> dict[str, float]:
    """Median seconds: the value alone; what storing residuals adds; the rest of the gradient."""
    names = (timing.VALUE, timing.FORWARD, timing.VALUE_AND_GRAD)
    value, stored, whole = (phases[name][SIDES[side]]["median"] for name in names)
    return {"forward": value, "overhead": stored - value, "backward": whole - stored}


def text(result: Result) -> str:
    """One row a set and side, then how far the two trainings are apart."""
    header = ["set", "side", *PARTS, "backward speedup", "whole", "accuracy", "loss apart"]
    rows, notes = [], []
    for name, entry in result["sets"].items():
        size = f"{name} {entry['frames']}x{entry['features']}"
        for side in SIDES:
            parts = breakdown(entry["phases"], side)
            training = entry["training"][side]
            ours = side == rnn_report.OURS
            ratios = [
                tables.interval(p["speedup"], p["low"], p["high"]) if ours else ""
                for p in (entry["phases"][q] for q in (timing.BACKWARD, timing.VALUE_AND_GRAD))
            ]
            apart = f"{training['loss_difference']:.1e}" if ours else ""
            times = [tables.seconds(seconds) for seconds in parts.values()]
            rows.append([size, side, *times, *ratios, f"{training['accuracy']:.1%}", apart])
        control = entry["training"][rnn_report.CONTROL]
        notes.append(
            f"{name}: {entry['choice']}; gradients differ by {entry['gradient_error']:.1e} "
            f"(allowed {entry['gradient_tolerance']:.1e}); jax.lax.scan from one ulp away: loss "
            f"apart by {control['loss_difference']:.1e}, accuracy {control['accuracy']:.1%}"
        )
    settings, data = result["settings"], result["data"]
    about = (
        f"{data['source']}, {len(data['classes'])} classes; GRU H={settings['hidden']} "
        f"B={settings['batch']}, {settings['steps']} steps, Adam {settings['lr']:g}"
    )
    return "\n".join([about, "", tables.table(header, rows), "", *notes])


def draw(result: Result, path: pathlib.Path) -> None:
    """Loss curves of every set, which should lie on each other, and the parts of a step."""
    sets = result["sets"]
    figure = figures.new(3.6 * (len(sets) + 1), 3.6)
    *curves, bars = figure.subplots(1, len(sets) + 1)
    for axes, (name, entry) in zip(curves, sets.items(), strict=True):
        for side, style in ((rnn_report.BASELINE, "-"), (rnn_report.OURS, "--")):
            losses = entry["training"][side]["losses"]
            _draw_curve(axes, side, losses, style)
        axes.set(
            title=f"{name}: {entry['frames']} x {entry['features']}",
            xlabel="iteration",
            ylabel="training loss",
        )
    curves[0].legend(fontsize="small")
    _draw_parts(bars, sets)
    settings, data = result["settings"], result["data"]
    figure.suptitle(f"{data['source']}: GRU, H={settings['hidden']}, B={settings['batch']}")
    figures.save(figure, path)


def _draw_curve(axes: Axes, side: str, losses: list[float], style: str) -> None:
    """Faint the loss of each batch, full the mean of the last few."""
    width = min(_SMOOTHED, len(losses))
    mean = np.convolve(losses, np.full(width, 1 / width), mode="valid")
    iterations = np.arange(1, len(losses) + 1)
    axes.plot(iterations, losses, color=_COLOURS[side], lw=0.3, alpha=0.3)
    axes.plot(iterations[width - 1 :], mean, style, color=_COLOURS[side], label=side, lw=1.4)


def _draw_parts(axes: Axes, sets: dict[str, Any]) -> None:
    places, labels = [], []
    for k, (name, entry) in enumerate(sets.items()):
        for j, side in enumerate(SIDES):
            place, bottom = 2.5 * k + j, 0.0
            for part, seconds in breakdown(entry["phases"], side).items():
                first = k == j == 0
                axes.bar(
                    place,
                    1e3 * seconds,
                    bottom=1e3 * bottom,
                    color=PARTS[part],
                    label=part if first else None,
                )
                bottom += seconds
            places.append(place)
            labels.append(f"{name}\n{('lax', 'pb')[j]}")
    axes.set_xticks(places, labels)
    axes.set(title="value and gradient: lax.scan (lax), parscan_bp (pb)", ylabel="ms")
    axes.title.set_fontsize("small")
    axes.legend(fontsize="small")
