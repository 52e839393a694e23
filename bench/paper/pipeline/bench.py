"""Stale pipelines (DSP): accuracy, speed, stragglers, gradients, and what helps.

Everything is trained by `parscan_bp.pipeline.run` on one device; times are those of the event
model, in units of a block's forward pass (F : B = 1 : 2), never of a clock.

    accuracy     every schedule and the six configurations of DSP's Table 1, by epoch and by
                 modelled time (figures 3 to 5, Tables 1 and 4): a small ResNet on images, a plain
                 net of nine layers on spoken digits, over several seeds
    speed        speedups over BP of K equal blocks, and the slow down by stragglers, the paper's
                 numbers beside (Tables 2 and 3)
    difference   of DSP's gradient from back-propagation's, block by block (figure 4), with the
                 bound of Lemma 1
    remedies     what closes how much of the gap at delays 2, 8 and 16, with SGD, Adam and Muon

    python -m bench pipeline --data FOLDER --digits FOLDER     CIFAR-10's binary files, and
                                                               {digit}_{speaker}_{index}.wav
    python -m bench pipeline                                   generated images and tones
"""

import pathlib

from bench.paper.pipeline import accuracy, difference, figures, remedies, report, speed
from bench.shared.bench import Bench, Named, Option, Options, Points, Result

_MEASURES = {
    "accuracy": accuracy.measure,
    "difference": difference.measure,
    "remedies": remedies.measure,
    "speed": lambda point, options: speed.speed(options),
    "stragglers": lambda point, options: speed.stragglers(options),
}


def points(options: Options) -> Points:
    """The cheap ones first."""
    parts = (speed, difference, accuracy, remedies)
    return {name: point for part in parts for name, point in part.points(options).items()}


def measure(point: tuple, options: Options) -> Result:
    """One point of one of the parts."""
    return _MEASURES[point[0]](point, options)


def about(options: Options) -> Result:
    """What the options do not say."""
    return {
        "settings": {
            "images": "generated" if options.data is None else "CIFAR-10",
            "sounds": "generated" if options.digits is None else "recorded",
        }
    }


BENCH = Bench(
    "pipeline",
    __doc__,
    baseline="back-propagation, one batch at a time through all blocks (BP-K)",
    points=points,
    measure=measure,
    rows=Named("points"),
    text=report.text,
    options=(
        Option("data", None, "folder of CIFAR-10's binary files", kind=pathlib.Path),
        Option("digits", None, "folder of spoken digits", kind=pathlib.Path),
        Option("seeds", 3, "runs of every accuracy and remedy"),
        Option("epochs", 8),
        Option("batch", 64, "paper: 128"),
        Option("lr", [0.01, 0.1], "learning rates on images; the first also of the difference"),
        Option("digits-lr", [0.002, 0.02], "learning rates on digits"),
        Option("momentum", 0.9),
        Option("train-images", 2000),
        Option("test-images", 500),
        Option("size", 16, "of the images, a divisor of 32"),
        Option("width", 8, "channels of the first residual unit; 8 times as many hidden units"),
        Option("samples", 40, "batches at which both gradients are taken"),
        Option("straggling", 3000, "batches over which a slow down is averaged"),
        Option("steps", 400, "of the remedies"),
        Option("delays", 3, "how many of the delays 2, 8, 16"),
    ),
    quick={
        "seeds": 1,
        "epochs": 2,
        "batch": 8,
        "lr": [0.01],
        "digits_lr": [0.002],
        "train_images": 160,
        "test_images": 20,
        "size": 8,
        "width": 2,
        "samples": 4,
        "straggling": 60,
        "steps": 20,
        "delays": 1,
    },
    facts=about,
    draw=figures.draw,
    fixed=("seeds", "epochs", "batch", "momentum", "train-images", "size", "width", "steps"),
)
