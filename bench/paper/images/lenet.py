"""Training LeNet-5 on CIFAR-10, through jax.grad and through parscan_bp.chain (BPPSA 3.5).

Both sides start from the same parameters and see the same batches, a step of each in turn. The
settings are the papers': batches of 256, SGD with a learning rate of 0.001 and a momentum of 0.9.
A third side trains through jax.grad from parameters one ulp away: what rounding alone does. With
`--data FOLDER` the images are those of the official binary files, else generated ones.
"""

import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import optax
from matplotlib.figure import Figure

import parscan_bp
from bench.paper.images import cifar, networks
from bench.paper.recurrent import bitstream
from bench.shared import figures, programs, tables
from bench.shared.bench import Bench, Option, Options, Result, Whole
from bench.shared.training import Trainer, control_of, train_sides
from parscan_bp.layers import Layer, init

SOLVERS: dict[str, Any] = {
    "auto": None,
    "sweep": parscan_bp.Sweep(),
    "blelloch": parscan_bp.Blelloch(),
    "truncated": parscan_bp.Blelloch(up_levels=1),
}
MOMENTUM = 0.9
CHECKED = 2
BASELINE, OURS = "jax.grad", "parscan_bp.chain"
CONTROL = control_of(BASELINE)
_STYLES = {
    CONTROL: {"color": "#999999", "lw": 1.0},
    BASELINE: {"color": "#ee7733", "lw": 2.4},
    OURS: {"color": "#0077bb", "lw": 1.4, "ls": "--"},
}


def measure(solver: Any, options: Options) -> Result:
    """Checks the gradients, trains all sides.

    Raises:
        FloatingPointError: the gradients of the two sides differ.
    """
    rng = np.random.default_rng(options.seed)
    train, test = cifar.load(options.data, rng, options.train_images, options.test_images)
    layers = networks.lenet5()
    size = train.pixels.shape[1:]
    params = init(layers, jax.random.key(options.seed), size, np.float32)
    optimiser = optax.sgd(options.lr, momentum=MOMENTUM)
    trainers = {
        side: Trainer(networks.loss(layers, forward), optimiser)
        for side, forward in {BASELINE: networks.plain, OURS: networks.chain(solver)}.items()
    }
    checks = _check(layers, params, train.batch(slice(CHECKED)), {options.solver, "blelloch"})
    start, batch = trainers[BASELINE].start(params), train.batch(slice(options.batch))
    made = {side: programs.build(own.step, start, batch) for side, own in trainers.items()}
    trainings = train_sides(
        made,
        trainers,
        params,
        map(train.batch, bitstream.shuffled(rng, options.train_images, options.batch)),
        options.steps,
        probe=networks.scorer(layers, test.batch(slice(None))),
        every=options.every,
    )
    training = {
        side: {"losses": own.losses, "seconds": own.seconds, "test": own.probes}
        for side, own in trainings.items()
    }
    return {
        "gradient_errors": checks,
        "programs": programs.to_json(made),
        "training": training,
        "differences": {
            side: differences(training[BASELINE], training[side]) for side in (OURS, CONTROL)
        },
    }


def _check(
    layers: Sequence[Layer], params: Any, batch: cifar.Batch, solvers: set[str]
) -> dict[str, Any]:
    """How far the gradients by each solver are from jax.grad's, on a few images."""

    def gradient(forward: networks.Forward) -> Any:
        return jax.jit(jax.grad(networks.loss(layers, forward)))

    plain = gradient(networks.plain)
    wanted = plain(params, batch)
    allowed = programs.tolerance(wanted, plain(programs.one_ulp_up(params), batch), batch[0].size)
    errors = {
        name: programs.check_equal(
            wanted, gradient(networks.chain(SOLVERS[name]))(params, batch), allowed, name
        )
        for name in sorted(solvers)
    }
    return {"images": len(batch.labels), "allowed": allowed, "solvers": errors}


def differences(plain: dict[str, Any], other: dict[str, Any]) -> dict[str, float]:
    """The largest differences of two trainings: of the loss of a step, on the test images."""

    def largest(name: str) -> float:
        pairs = zip(plain["test"].values(), other["test"].values(), strict=True)
        return max(abs(a[name] - b[name]) for a, b in pairs)

    return {
        "training_loss": float(np.max(np.abs(np.subtract(plain["losses"], other["losses"])))),
        "test_loss": largest("loss"),
        "test_accuracy": largest("accuracy"),
    }


def text(result: Result) -> str:
    """What was learned by each side, and how far apart the sides are."""
    settings, sides = result["settings"], result["training"]
    last = {side: list(own["test"].values())[-1] for side, own in sides.items()}
    rows = [
        ["first training loss", *(f"{own['losses'][0]:.6f}" for own in sides.values())],
        ["last training loss", *(f"{own['losses'][-1]:.6f}" for own in sides.values())],
        ["test loss", *(f"{end['loss']:.6f}" for end in last.values())],
        ["test accuracy", *(f"{end['accuracy']:.1%}" for end in last.values())],
        ["seconds in steps", *(f"{own['seconds'][-1]:.1f}" for own in sides.values())],
    ]
    apart, check = result["differences"], result["gradient_errors"]
    compared = [
        [name.replace("_", " "), *(f"{apart[side][name]:.1e}" for side in (OURS, CONTROL))]
        for name in apart[OURS]
    ]
    errors = ", ".join(f"{name} {error:.1e}" for name, error in check["solvers"].items())
    return "\n\n".join(
        [
            f"LeNet-5 on {settings['images']} images, batch {settings['batch']}, SGD "
            f"{settings['lr']} with momentum {settings['momentum']}, solver {settings['solver']}",
            tables.table([f"{settings['steps']} iterations", *sides], rows),
            tables.table([f"largest difference from {BASELINE}", OURS, CONTROL], compared),
            f"gradients on {check['images']} images differ by at most, of a leaf's largest entry: "
            f"{errors} (allowed {check['allowed']:.1e})",
        ]
    )


def figure6(result: Result) -> Figure:
    """Training loss, test loss and test accuracy over the iterations; the curves overlap."""
    figure = figures.new(11, 3.6)
    training, test, accuracy = figure.subplots(1, 3)
    for side, style in _STYLES.items():
        own = result["training"][side]
        losses, at = own["losses"], [int(done) for done in own["test"]]
        training.plot(np.arange(1, len(losses) + 1), losses, label=side, **style)
        for axes, name in ((test, "loss"), (accuracy, "accuracy")):
            axes.plot(at, [seen[name] for seen in own["test"].values()], label=side, **style)
    for axes, name in ((training, "training loss"), (test, "test loss"), (accuracy, "accuracy")):
        axes.set(xlabel="iteration", ylabel=name)
    apart, settings = result["differences"][OURS], result["settings"]
    training.set_title(f"(a) training: at most {apart['training_loss']:.1e} apart", size=10)
    test.set_title(f"(b) test: at most {apart['test_loss']:.1e} apart", size=10)
    accuracy.set_title("(c) test", size=10)
    accuracy.legend()
    figure.suptitle(
        f"Figure 6: LeNet-5 on {settings['images']} images, batch {settings['batch']}, "
        f"solver {settings['solver']}",
        size=11,
    )
    return figure


def about(options: Options) -> Result:
    """What the options do not say."""
    images = "generated" if options.data is None else "CIFAR-10"
    return {"settings": {"momentum": MOMENTUM, "images": images}}


BENCH = Bench(
    "lenet",
    __doc__,
    baseline="jitted jax.grad of the layers",
    points=lambda options: {"training": SOLVERS[options.solver]},
    measure=measure,
    rows=Whole(),
    text=text,
    options=(
        Option("data", None, "folder of the official binary files", kind=pathlib.Path),
        Option("batch", 256),
        Option("steps", 300, "training steps of each side"),
        Option("lr", 1e-3, "of SGD with momentum 0.9"),
        Option("solver", "auto", choices=tuple(SOLVERS)),
        Option("seed", 0),
        Option("train-images", 10000, "paper: 50000"),
        Option("test-images", 2000, "paper: 10000"),
        Option("every", 30, "steps between two tests"),
    ),
    quick={"batch": 8, "steps": 4, "train_images": 32, "test_images": 16, "every": 2},
    facts=about,
    draw=lambda result: {"_figure6": figure6(result)},
)
