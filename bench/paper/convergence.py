"""Training with Jacobians that are multiplied in another order (BPPSA 3.5, figure 6).

The paper's claim is that a scan, which changes the order of the products and so their rounding,
does not change how a network learns. So here nothing is chosen: every side but the baselines names
a solver that multiplies Jacobians with one another, and the record says how many products a step
takes. All start from the same parameters and see the same batches; the control is the baseline from
parameters one ulp away, which is how far rounding alone drives two trainings apart.

    python -m bench convergence --data FOLDER --digits FOLDER

with CIFAR-10's binary files and spoken digits, as in `bench lenet` and `bench gru`; else images and
sounds are generated.
"""

import functools
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from matplotlib.figure import Figure

import parscan_bp as pb
from bench.paper.images import cifar, networks
from bench.paper.recurrent import audio, bitstream, sides
from bench.shared import figures, programs, tables
from bench.shared.bench import Bench, Named, Option, Options, Result
from bench.shared.training import Trainer, control_of, train_sides
from parscan_bp.layers import init

TREES: dict[str, Any] = {
    "Blelloch()": pb.Blelloch(),
    "Blelloch(up_levels=2)": pb.Blelloch(up_levels=2),
    "Associative()": pb.Associative(),
    "Chunked(8)": pb.Chunked(8),
}
OF_LAYERS = ("Blelloch()", "Blelloch(up_levels=2)")
"""Those that take layers of different sizes."""


class Task(NamedTuple):
    """A network to train.

    Attributes:
        steps: Jacobians between the loss and the first of them.
        losses: of each side, the baseline first.
        optimiser: of all.
        params: with which all start.
        batches: without end.
    """

    steps: int
    losses: dict[str, programs.Loss]
    optimiser: optax.GradientTransformation
    params: Any
    batches: Iterator[Any]


def rnn(options: Options) -> Task:
    """The RNN on bitstreams of section 4.1."""
    rng = np.random.default_rng(options.seed)
    data = bitstream.draw(rng, options.samples, options.T)
    params = bitstream.init(pb.cells.Elman(), jax.random.key(options.seed), options.hidden)
    return _recurrent(pb.cells.Elman(), params, data, options.T, 5e-4, rng, options)


def gru(options: Options) -> Task:
    """The GRU on sounds of section 4.2, in the setting S of Table 3."""
    rng = np.random.default_rng(options.seed)
    clips = audio.generate(rng) if options.digits is None else audio.read(options.digits, None)
    train, _ = clips.features(audio.SETS["S"])
    _, length, features = train.frames.shape
    key, classes = jax.random.key(options.seed), len(clips.classes)
    params = bitstream.init(pb.cells.GRU(), key, options.hidden, features, classes)
    return _recurrent(pb.cells.GRU(), params, train, length, 1e-3, rng, options)


def _recurrent(cell, params, data, length, rate, rng, options) -> Task:
    scans = {"jax.lax.scan": jax.lax.scan}
    scans |= {name: functools.partial(pb.scan, solver=tree) for name, tree in TREES.items()}
    losses = {side: functools.partial(bitstream.loss, cell, scan) for side, scan in scans.items()}
    rows = bitstream.shuffled(rng, len(data.labels), options.batch)
    return Task(length, losses, optax.adam(rate), params, map(data.batch, rows))


def lenet(options: Options) -> Task:
    """LeNet-5 of section 3.5, by batches whose Jacobians fit."""
    rng = np.random.default_rng(options.seed)
    train, _ = cifar.load(options.data, rng, options.images, 1)
    layers = networks.lenet5()
    params = init(layers, jax.random.key(options.seed), train.pixels.shape[1:], np.float32)
    forward = {"jax.grad": networks.plain}
    forward |= {name: networks.chain(TREES[name]) for name in OF_LAYERS}
    losses = {side: networks.loss(layers, f) for side, f in forward.items()}
    rows = bitstream.shuffled(rng, options.images, options.images_batch)
    optimiser = optax.sgd(1e-3, momentum=0.9)
    return Task(len(layers), losses, optimiser, params, map(train.batch, rows))


TASKS: dict[str, Callable[[Options], Task]] = {"RNN": rnn, "GRU": gru, "LeNet-5": lenet}


def measure(make: Callable[[Options], Task], options: Options) -> Result:
    """Trains all sides of a network."""
    task = make(options)
    first = next(task.batches)
    trainers = {side: Trainer(loss, task.optimiser) for side, loss in task.losses.items()}
    start = trainers[next(iter(trainers))].start(task.params)
    made = {side: programs.build(own.step, start, first) for side, own in trainers.items()}
    count = options.images_steps if make is lenet else options.steps
    found = train_sides(made, trainers, task.params, task.batches, count)
    baseline, *_ = found
    plain = found[baseline].losses
    return {
        "jacobians": task.steps,
        "batch": options.images_batch if make is lenet else options.batch,
        "iterations": count,
        "baseline": baseline,
        "sides": {
            side: {
                "products": _products(side, task.steps),
                "apart": sides.curve_difference(plain, training.losses),
                "losses": [float(f"{loss:.7g}") for loss in training.losses],
            }
            for side, training in found.items()
        },
    }


def _products(side: str, steps: int) -> int:
    """Products of two Jacobians a training step and entry of the batch."""
    return TREES[side].complexity(steps).matrix_products if side in TREES else 0


def control(entry: Result) -> str:
    """The side from one ulp away."""
    return control_of(entry["baseline"])


def together(entry: Result, side: str) -> int:
    """Iterations before the losses of a side and of the baseline part, by a thousandth."""
    plain, own = (entry["sides"][name]["losses"] for name in (entry["baseline"], side))
    apart = np.abs(np.subtract(own, plain)) > 1e-3 * np.abs(plain)
    return int(np.argmax(apart)) if apart.any() else len(apart)


def text(result: Result) -> str:
    """A row for each side of each network."""
    rows = []
    for name, entry in result["networks"].items():
        for side, own in entry["sides"].items():
            ends = (f"{own['losses'][k]:.4f}" for k in (0, -1))
            rows.append([f"{name}: {side}", str(own["products"]), *ends, f"{own['apart']:.1e}"])
    header = ["", "products a step", "first loss", "last loss", "apart from the baseline"]
    return tables.table(header, rows)


def draw(result: Result) -> dict[str, Figure]:
    """How far each side is from the baseline, over the iterations; the curves above it."""
    entries = result["networks"]
    figure = figures.new(4.2 * len(entries), 5.6)
    for k, (name, entry) in enumerate(entries.items()):
        above, below = (
            figure.add_subplot(2, len(entries), k + 1 + row * len(entries)) for row in (0, 1)
        )
        plain = np.asarray(entry["sides"][entry["baseline"]]["losses"])
        at = np.arange(1, len(plain) + 1)
        largest = 0.0
        for side, own in entry["sides"].items():
            losses = np.asarray(own["losses"])
            above.plot(at, losses, lw=1.0, label=side)
            if side != entry["baseline"]:
                apart = np.maximum.accumulate(np.abs(losses - plain) / plain)
                below.plot(at, apart, lw=1.0, label=f"{side}: {own['products']} products")
                largest = max(largest, apart[-1])
        above.set(title=f"{name}, batch {entry['batch']}", ylabel="training loss" if k == 0 else "")
        below.set(xlabel="iteration", yscale="log" if largest else "linear")
        below.set_ylabel("largest relative difference so far" if k == 0 else "")
        below.legend(fontsize=6)
    return {"": figure}


BENCH = Bench(
    "convergence",
    __doc__,
    baseline="jitted jax.grad of jax.lax.scan, or of the layers",
    points=lambda options: {name: TASKS[name] for name in options.networks},
    measure=measure,
    rows=Named("networks"),
    text=text,
    draw=draw,
    options=(
        Option("networks", list(TASKS), choices=list(TASKS)),
        Option("data", None, "folder of CIFAR-10's binary files", kind=pathlib.Path),
        Option("digits", None, "folder of spoken digits", kind=pathlib.Path),
        Option("T", 1000, "bits of a stream"),
        Option("samples", 4096, "streams"),
        Option("images", 10000, "of CIFAR-10 (paper: 50000)"),
        Option("hidden", 20),
        Option("batch", 16, "of the recurrent networks"),
        Option("images-batch", 16, "of LeNet-5 (paper: 256), whose Jacobians are each image's own"),
        Option("steps", 1000, "iterations of the recurrent networks"),
        Option("images-steps", 1000, "iterations of LeNet-5"),
        Option("seed", 0),
    ),
    quick={
        "T": 12,
        "samples": 16,
        "images": 8,
        "hidden": 3,
        "batch": 4,
        "images_batch": 2,
        "steps": 4,
        "images_steps": 2,
    },
)
