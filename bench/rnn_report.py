"""The table and the two plots of a bitstream training (figures 6 and 7 of the BPPSA paper)."""

import pathlib
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from bench import figures, tables, timing

Result = dict[str, Any]

BASELINE, OURS, CONTROL = "jax.lax.scan", "parscan_bp.scan", "jax.lax.scan, 1 ulp away"
STEP, VALUE = "step", "value"
PHASES = {
    VALUE: "value alone",
    timing.FORWARD: "forward, residuals kept",
    timing.BACKWARD: "backward = whole - forward",
    timing.VALUE_AND_GRAD: "value_and_grad",
    STEP: "training step, with Adam",
}
_COLOURS = {BASELINE: "#cc3311", OURS: "#0077bb", CONTROL: "#999999"}
_SMOOTHED = 20


def curve_difference(plain: list[float], other: list[float]) -> float:
    """The largest difference of two loss curves, relative to the first."""
    return float(np.max(np.abs(np.subtract(other, plain)) / np.abs(plain)))


def text(result: Result) -> str:
    """The table: phases with their ratios, then compilation, memory and what was learned."""
    settings, training = result["settings"], result["training"]
    header = [
        f"{settings['cell']} T={settings['T']} B={settings['batch']} H={settings['hidden']}",
        *(BASELINE, "IQR", OURS, "IQR"),
        *("speedup [95 %]", "A/A"),
    ]
    rows = [_phase(PHASES[phase], entry) for phase, entry in result["phases"].items()]
    apart = result["loss_curve_difference"]
    step = {side: result["programs"][side][STEP] for side in (BASELINE, OURS)}
    facts = [
        ["tracing, lowering", *_both(step, "lower_seconds", tables.seconds)],
        ["compilation", *_both(step, "compile_seconds", tables.seconds)],
        ["temporary memory", *_both(step, "temp_bytes", tables.size)],
        ["first loss", *(f"{training[side]['losses'][0]:.4f}" for side in step)],
        ["final loss", *(f"{training[side]['losses'][-1]:.4f}" for side in step)],
        ["test accuracy", *(f"{training[side]['accuracy']:.1%}" for side in step)],
        ["time to train", *(tables.seconds(training[side]["seconds"][-1]) for side in step)],
    ]
    return "\n\n".join(
        [
            tables.table(header, rows),
            tables.table(["", BASELINE, OURS], facts),
            f"baseline: jitted jax.grad of jax.lax.scan, unroll={settings['unroll']}\n"
            f"solver: {settings['solver']}, planned: {result['choice']}\n"
            f"gradients differ by at most {result['gradient_error']:.1e} of a leaf's largest "
            f"entry (allowed {result['gradient_tolerance']:.1e})\n"
            f"loss curves differ by at most {apart[OURS]:.1e}, relative; "
            f"those of jax.lax.scan from parameters one ulp apart by {apart[CONTROL]:.1e}",
        ]
    )


def loss_by_iteration(result: Result, path: pathlib.Path) -> None:
    """Loss over the iterations: the curves should lie on each other (figure 6)."""
    figure = figures.new(6, 4)
    axes = figure.subplots()
    for side, style in ((CONTROL, "-"), (BASELINE, "-"), (OURS, "--")):
        losses = result["training"][side]["losses"]
        draw_curve(axes, side, np.arange(1, len(losses) + 1), losses, style)
    axes.set(xlabel="iteration", ylabel="training loss", title=_title(result))
    axes.legend()
    figures.save(figure, path)


def loss_by_time(result: Result, path: pathlib.Path) -> None:
    """Both losses over the time spent in training steps (figure 7)."""
    figure = figures.new(6, 4)
    axes = figure.subplots()
    for side in (BASELINE, OURS):
        training = result["training"][side]
        draw_curve(axes, side, np.asarray(training["seconds"]), training["losses"], "-")
    axes.set(xlabel="seconds in training steps", ylabel="training loss", title=_title(result))
    axes.legend()
    figures.save(figure, path)


FIGURES = {"loss_by_iteration": loss_by_iteration, "loss_by_time": loss_by_time}


def _phase(name: str, entry: dict[str, Any]) -> list[str]:
    times = [
        tables.seconds(entry[side][value])
        for side in ("baseline", "candidate")
        for value in ("median", "iqr")
    ]
    ratio = tables.interval(entry["speedup"], entry["low"], entry["high"])
    return [name, *times, ratio, f"{entry['again']:.2f}"]


def draw_curve(axes: Axes, side: str, at: np.ndarray, losses: list[float], style: str) -> None:
    """Faint the loss of each batch, full the mean of the last few."""
    width = min(_SMOOTHED, len(losses))
    mean = np.convolve(losses, np.full(width, 1 / width), mode="valid")
    axes.plot(at, losses, color=_COLOURS[side], lw=0.5, alpha=0.3)
    axes.plot(at[width - 1 :], mean, style, color=_COLOURS[side], label=side, lw=1.4)


def _both(programs: dict[str, Any], value: str, unit: Any) -> list[str]:
    return [unit(program[value]) for program in programs.values()]


def _title(result: Result) -> str:
    settings = result["settings"]
    names = f"{settings['cell']}, T={settings['T']}, B={settings['batch']}, H={settings['hidden']}"
    return f"bitstreams: {names}, {settings['solver']}"
