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

import argparse
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import optax

import parscan_bp
from bench import audio, bitstream, candidates, gru_report, record, rnn, rnn_report
from bench.training import Trainer, train_sides

CELL = parscan_bp.cells.GRU()


def main(argv: Sequence[str]) -> None:
    """Checks gradients, times and trains both sides on every set; writes JSON and a plot.

    Raises:
        FloatingPointError: the gradients of the two sides differ.
        ValueError: `--data` is not one of the layouts.
    """
    options = _parser().parse_args(argv)
    run = record.environment(argv)
    if options.data is None:
        clips = audio.generate(np.random.default_rng(options.seed))
    else:
        clips = audio.read(options.data, options.per_class)
    names = ("batch", "steps", "hidden", "lr", "solver", "seed", "unroll", "per_class")
    result: dict[str, Any] = {
        "runs": [run],
        "settings": {name: getattr(options, name) for name in names},
        "data": {"source": clips.source, "classes": clips.classes, "rate": clips.rate},
        "sets": {},
    }
    for name in options.sets:
        result["sets"][name] = measure(*clips.features(audio.SETS[name]), clips.classes, options)
        run["load_end"] = record.load_average()
        record.write(record.result_path(options), result)
    print(gru_report.text(result))
    path = record.result_path(options, ".png")
    gru_report.draw(result, path)
    print(f"drew {path.name}")


def _parser() -> argparse.ArgumentParser:
    shared = record.output_options("gru")
    parser = argparse.ArgumentParser("python -m bench gru", parents=[shared])
    parser.add_argument("--data", type=pathlib.Path, help="IRMAS or spoken digits")
    parser.add_argument("--sets", nargs="+", choices=tuple(audio.SETS), default=tuple(audio.SETS))
    parser.add_argument("--per-class", type=int, help="clips of a class at most")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=400, help="training steps of each side")
    parser.add_argument("--hidden", type=int, default=20)
    parser.add_argument("--solver", choices=tuple(candidates.SOLVERS), default=candidates.AUTO)
    parser.add_argument("--lr", type=float, default=1e-3, help="of Adam (paper: 3e-4)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--unroll", type=int, default=1, help="of the baseline's lax.scan")
    parser.add_argument("--rounds", type=int, default=25, help="timing rounds at most")
    parser.add_argument("--min-rounds", type=int, default=15, help="and at least")
    parser.add_argument("--budget-seconds", type=float, default=15.0, help="for all rounds")
    return parser


def measure(
    train: audio.Features,
    test: audio.Features,
    classes: Sequence[str],
    options: argparse.Namespace,
) -> dict[str, Any]:
    """One set: sizes, gradient check, phases, both trainings.

    Raises:
        FloatingPointError: the gradients of the two sides differ.
    """
    _, length, features = train.frames.shape
    params = bitstream.init(
        CELL, jax.random.key(options.seed), options.hidden, features, len(classes)
    )
    batch = train.batch(np.arange(options.batch))
    losses = {
        rnn_report.BASELINE: rnn.loss_of(CELL, candidates.baseline(options.unroll)),
        rnn_report.OURS: rnn.loss_of(CELL, candidates.candidate(options.solver)),
    }
    trainers = {side: Trainer(loss, optax.adam(options.lr)) for side, loss in losses.items()}
    made = rnn.build_sides(losses, trainers, params, batch)
    allowed, error = rnn.check_gradients(made, params, batch, length * options.batch)
    phases = rnn.race_sides(made, options)
    rng = np.random.default_rng(options.seed)
    rows = bitstream.shuffled(rng, len(train.labels), options.batch)
    steps = {side: own[rnn_report.STEP] for side, own in made.items()}
    trainings = train_sides(steps, trainers, params, map(train.batch, rows), options.steps)
    plain = trainings[rnn_report.BASELINE].losses
    return {
        "frames": length,
        "features": features,
        "clips": {"train": len(train.labels), "test": len(test.labels)},
        "choice": rnn.choice_of(CELL, params, batch, options.solver),
        "gradient_error": error,
        "gradient_tolerance": allowed,
        "phases": phases,
        "training": {
            side: {
                "losses": [float(f"{loss:.6g}") for loss in training.losses],
                "seconds": training.seconds[-1],
                "accuracy": bitstream.accuracy(CELL, training.params, test),
                "loss_difference": rnn_report.curve_difference(plain, training.losses),
            }
            for side, training in trainings.items()
        },
    }
