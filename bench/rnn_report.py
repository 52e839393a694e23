"""The table and the two plots of a bitstream training (figures 6 and 7 of the BPPSA paper)."""

import pathlib
from typing import Any

import numpy as np

from bench import figures, tables, timing
from bench.training import control_of
from parscan_bp import plots

Result = dict[str, Any]

BASELINE, OURS = "jax.lax.scan", "parscan_bp.scan"
CONTROL = control_of(BASELINE)
STEP = "step"
PHASES = {
    timing.VALUE: "value alone",
    timing.FORWARD: "forward, residuals kept",
    timing.BACKWARD: "backward = whole - forward",
    timing.VALUE_AND_GRAD: "value_and_grad",
    STEP: "training step, with Adam",
}


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
    runs = {side: result["training"][side] for side in (CONTROL, BASELINE, OURS)}
    losses = {side: run["losses"] for side, run in runs.items()}
    figures.save(plots.draw_losses(losses, title=_title(result)), path)


def loss_by_time(result: Result, path: pathlib.Path) -> None:
    """Both losses over the time spent in training steps (figure 7)."""
    runs = {side: result["training"][side] for side in (BASELINE, OURS)}
    losses = {side: run["losses"] for side, run in runs.items()}
    seconds = {side: run["seconds"] for side, run in runs.items()}
    label = "seconds in training steps"
    figures.save(plots.draw_losses(losses, seconds, xlabel=label, title=_title(result)), path)


FIGURES = {"loss_by_iteration": loss_by_iteration, "loss_by_time": loss_by_time}


def _phase(name: str, entry: dict[str, Any]) -> list[str]:
    times = [
        tables.seconds(entry[side][value])
        for side in ("baseline", "candidate")
        for value in ("median", "iqr")
    ]
    ratio = tables.interval(entry["speedup"], entry["low"], entry["high"])
    return [name, *times, ratio, f"{entry['again']:.2f}"]


def _both(programs: dict[str, Any], value: str, unit: Any) -> list[str]:
    return [unit(program[value]) for program in programs.values()]


def _title(result: Result) -> str:
    settings = result["settings"]
    names = f"{settings['cell']}, T={settings['T']}, B={settings['batch']}, H={settings['hidden']}"
    return f"bitstreams: {names}, {settings['solver']}"
