"""Training an RNN on bitstreams, through jax.lax.scan and through parscan_bp.scan (BPPSA 4.1).

The table, and the loss over iterations and over time (figures 6 and 7). The paper trains 32000
streams of 1000 bits for 80 epochs at a learning rate of 1e-5, 160000 steps:

    python -m bench rnn --lr 1e-5 --train-samples 32000 --steps 160000

The defaults learn visibly in a few hundred steps instead. At a much higher rate (3e-3) the
gradients of a long stream explode now and then, and from there training is chaotic: so a third
side trains through lax.scan from parameters one ulp away, and the two sides are to be no further
apart than these.
"""

from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

import parscan_bp
from bench.paper.recurrent import bitstream, sides
from bench.paper.recurrent.sides import BASELINE, CONTROL, OURS, PHASES, STEP
from bench.shared import tables
from bench.shared.bench import Bench, Option, Options, Result, Whole
from parscan_bp import plots

CELLS = {
    "rnn": parscan_bp.cells.Elman(),
    "gru": parscan_bp.cells.GRU(),
    "lstm": parscan_bp.cells.LSTM(),
}
TEST_SAMPLES = 512


def measure(cell: Any, options: Options) -> Result:
    """Checks the gradients, times the phases, trains both sides.

    Raises:
        FloatingPointError: the gradients of the two sides differ.
    """
    rng = np.random.default_rng(options.seed)
    train = bitstream.draw(rng, options.train_samples, options.T)
    test = bitstream.draw(rng, TEST_SAMPLES, options.T)
    params = bitstream.init(cell, jax.random.key(options.seed), options.hidden)
    entry, trainings = sides.measure(cell, params, train, rng, options)
    plain = trainings[BASELINE].losses
    return {
        **entry,
        "training": {
            side: {
                "losses": training.losses,
                "seconds": training.seconds,
                "accuracy": bitstream.accuracy(cell, training.params, test),
            }
            for side, training in trainings.items()
        },
        "loss_curve_difference": {
            side: sides.curve_difference(plain, trainings[side].losses) for side in (OURS, CONTROL)
        },
    }


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
        ["tracing, lowering", *(tables.seconds(own["lower_seconds"]) for own in step.values())],
        ["compilation", *(tables.seconds(own["compile_seconds"]) for own in step.values())],
        ["temporary memory", *(tables.size(own["temp_bytes"]) for own in step.values())],
        ["first loss", *(f"{training[side]['losses'][0]:.4f}" for side in step)],
        ["final loss", *(f"{training[side]['losses'][-1]:.4f}" for side in step)],
        ["test accuracy", *(f"{training[side]['accuracy']:.1%}" for side in step)],
        ["time to train", *(tables.seconds(training[side]["seconds"][-1]) for side in step)],
    ]
    return "\n\n".join(
        [
            tables.table(header, rows),
            tables.table(["", BASELINE, OURS], facts),
            f"solver: {settings['solver']}, planned: {result['choice']}; unroll of the baseline: "
            f"{settings['unroll']}\n"
            f"gradients differ by at most {result['gradient_error']:.1e} of a leaf's largest "
            f"entry (allowed {result['gradient_tolerance']:.1e})\n"
            f"loss curves differ by at most {apart[OURS]:.1e}, relative; "
            f"those of jax.lax.scan from parameters one ulp apart by {apart[CONTROL]:.1e}",
        ]
    )


def _phase(name: str, entry: dict[str, Any]) -> list[str]:
    times = [
        tables.seconds(entry[side][value])
        for side in ("baseline", "candidate")
        for value in ("median", "iqr")
    ]
    return [name, *times, tables.speedup(entry), f"{entry['again']:.2f}"]


def draw(result: Result) -> dict[str, Figure]:
    """Losses over the iterations, where they should lie on each other, and over time."""
    settings, runs = result["settings"], result["training"]
    losses = {side: runs[side]["losses"] for side in (CONTROL, BASELINE, OURS)}
    seconds = {side: runs[side]["seconds"] for side in (BASELINE, OURS)}
    timed = {side: losses[side] for side in seconds}
    names = f"{settings['cell']}, T={settings['T']}, B={settings['batch']}, H={settings['hidden']}"
    title, label = f"bitstreams: {names}, {settings['solver']}", "seconds in training steps"
    return {
        "_loss_by_iteration": plots.draw_losses(losses, title=title),
        "_loss_by_time": plots.draw_losses(timed, seconds, xlabel=label, title=title),
    }


BENCH = Bench(
    "rnn",
    __doc__,
    baseline="jitted jax.grad of jax.lax.scan",
    points=lambda options: {"training": CELLS[options.cell]},
    measure=measure,
    rows=Whole(),
    text=text,
    options=(
        Option("T", 1000, "bits of a stream (paper: to 30000)"),
        Option("cell", "rnn", choices=tuple(CELLS)),
        Option("lr", 5e-4, "of Adam (paper: 1e-5, GRU 3e-4)"),
        Option("train-samples", 4096, "paper: 32000"),
        *sides.OPTIONS,
    ),
    quick={"T": 12, "batch": 4, "hidden": 3, "steps": 8, "train_samples": 16},
    draw=draw,
)
