"""Training a GRU to classify audio, through jax.lax.scan and through parscan_bp.scan (BPPSA 4.2).

The GRU of the paper (20 units, batches of 16) reads MFCC frames in the settings S, M and L of
Table 3, which trade frequency for time resolution, and its last state is classified. Both sides
start from the same parameters and see the same batches; the baseline is plain jitted `jax.grad`
of `jax.lax.scan`. As in Figure 9 a step is broken down into the forward pass, the overhead of
storing what the backward pass needs, and the backward pass.

    python -m bench gru --data FOLDER      IRMAS-TrainingData, or spoken digits as
                                           {digit}_{speaker}_{index}.wav
    python -m bench gru                    a small generated set

The paper trains at a learning rate of 3e-4. The default is higher, to learn in a few minutes.
"""

import functools
import pathlib
from typing import Any

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import parscan_bp
from bench.paper.recurrent import audio, bitstream, sides
from bench.shared import figures, tables, timing
from bench.shared.bench import Bench, Named, Option, Options, Result

CELL = parscan_bp.cells.GRU()
LANES = {sides.BASELINE: "baseline", sides.OURS: "candidate"}
_COLOURS = {sides.BASELINE: "#cc3311", sides.OURS: "#0077bb"}
_SMOOTHED = 20
PARTS = {"forward": "#bbbbbb", "overhead": "#ee7733", "backward": "#0077bb"}


@functools.cache
def _clips(data: pathlib.Path | None, per_class: int | None, seed: int) -> audio.Clips:
    if data is None:
        return audio.generate(np.random.default_rng(seed))
    return audio.read(data, per_class)


def clips_of(options: Options) -> audio.Clips:
    """Those of `--data`, or generated ones.

    Raises:
        ValueError: `--data` is not one of the layouts.
    """
    return _clips(options.data, options.per_class, options.seed)


def about(options: Options) -> Result:
    """Whose sounds are classified."""
    clips = clips_of(options)
    return {"data": {"source": clips.source, "classes": clips.classes, "rate": clips.rate}}


def measure(name: str, options: Options) -> Result:
    """One set: sizes, gradient check, phases, both trainings.

    Raises:
        FloatingPointError: the gradients of the two sides differ.
    """
    clips = clips_of(options)
    train, test = clips.features(audio.SETS[name])
    _, length, features = train.frames.shape
    key = jax.random.key(options.seed)
    params = bitstream.init(CELL, key, options.hidden, features, len(clips.classes))
    rng = np.random.default_rng(options.seed)
    entry, trainings = sides.measure(CELL, params, train, rng, options)
    plain = trainings[sides.BASELINE].losses
    return {
        "frames": length,
        "features": features,
        "clips": {"train": len(train.labels), "test": len(test.labels)},
        **entry,
        "training": {
            side: {
                "losses": [float(f"{loss:.6g}") for loss in training.losses],
                "seconds": training.seconds[-1],
                "accuracy": bitstream.accuracy(CELL, training.params, test),
                "loss_difference": sides.curve_difference(plain, training.losses),
            }
            for side, training in trainings.items()
        },
    }


def breakdown(phases: dict[str, Any], side: str) -> dict[str, float]:
    """Median seconds: the value alone; what storing residuals adds; the rest of the gradient."""
    names = (timing.VALUE, timing.FORWARD, timing.VALUE_AND_GRAD)
    value, stored, whole = (phases[name][LANES[side]]["median"] for name in names)
    return {"forward": value, "overhead": stored - value, "backward": whole - stored}


def text(result: Result) -> str:
    """One row a set and side, then how far the two trainings are apart."""
    header = ["set", "side", *PARTS, "backward speedup", "whole", "accuracy", "loss apart"]
    rows, notes = [], []
    for name, entry in result["sets"].items():
        size = f"{name} {entry['frames']}x{entry['features']}"
        for side in LANES:
            parts = breakdown(entry["phases"], side)
            training = entry["training"][side]
            ours = side == sides.OURS
            ratios = [
                tables.speedup(p) if ours else ""
                for p in (entry["phases"][q] for q in (timing.BACKWARD, timing.VALUE_AND_GRAD))
            ]
            apart = f"{training['loss_difference']:.1e}" if ours else ""
            times = [tables.seconds(seconds) for seconds in parts.values()]
            rows.append([size, side, *times, *ratios, f"{training['accuracy']:.1%}", apart])
        control = entry["training"][sides.CONTROL]
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


def draw(result: Result) -> dict[str, Figure]:
    """Loss curves of every set, which should lie on each other, and the parts of a step."""
    sets = result["sets"]
    figure = figures.new(3.6 * (len(sets) + 1), 3.6)
    *curves, bars = figure.subplots(1, len(sets) + 1)
    for axes, (name, entry) in zip(curves, sets.items(), strict=True):
        for side, style in ((sides.BASELINE, "-"), (sides.OURS, "--")):
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
    return {"": figure}


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
        for j, side in enumerate(LANES):
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


BENCH = Bench(
    "gru",
    __doc__,
    baseline="jitted jax.grad of jax.lax.scan",
    points=lambda options: {name: name for name in options.sets},
    measure=measure,
    rows=Named("sets"),
    text=text,
    options=(
        Option("data", None, "IRMAS or spoken digits", kind=pathlib.Path),
        Option("sets", list(audio.SETS), choices=tuple(audio.SETS)),
        Option("per-class", None, "clips of a class at most", kind=int),
        Option("lr", 1e-3, "of Adam (paper: 3e-4)"),
        *sides.OPTIONS,
    ),
    quick={"sets": ["S"], "steps": 6, "hidden": 3, "batch": 4, "lr": 0.01},
    facts=about,
    draw=draw,
)
