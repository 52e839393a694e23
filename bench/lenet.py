"""Training LeNet-5 on CIFAR-10, through jax.grad and through parscan_bp.chain (BPPSA 3.5).

Both sides start from the same parameters and see the same batches, a step of each in turn. The
settings are the papers': batches of 256, SGD with a learning rate of 0.001 and a momentum of 0.9.
A third side trains through jax.grad from parameters one ulp away: what rounding alone does. With
`--data FOLDER` the images are those of the official binary files, else generated ones.
"""

import argparse
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import optax

import parscan_bp
from bench import bitstream, cifar, lenet_report, networks, programs, record
from bench.lenet_report import BASELINE, CONTROL, OURS
from bench.training import Trainer, train_sides
from parscan_bp.layers import Layer, init

SOLVERS: dict[str, Any] = {
    "auto": None,
    "sweep": parscan_bp.Sweep(),
    "blelloch": parscan_bp.Blelloch(),
    "truncated": parscan_bp.Blelloch(up_levels=1),
}
MOMENTUM = 0.9
CHECKED = 2


def main(argv: Sequence[str]) -> None:
    """Checks the gradients, trains all sides, prints a table, writes JSON and the figure.

    Raises:
        FloatingPointError: the gradients of the two sides differ.
    """
    options = _parser().parse_args(argv)
    run = record.environment(argv)
    rng = np.random.default_rng(options.seed)
    train, test = cifar.load(options.data, rng, options.train_images, options.test_images)
    layers = networks.lenet5()
    size = train.pixels.shape[1:]
    params = init(layers, jax.random.key(options.seed), size, np.float32)
    forwards = {BASELINE: networks.plain, OURS: networks.chain(SOLVERS[options.solver])}
    optimiser = optax.sgd(options.lr, momentum=MOMENTUM)
    trainers = {
        side: Trainer(networks.loss(layers, forward), optimiser)
        for side, forward in forwards.items()
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
    result = {
        "runs": [{**run, "load_end": record.load_average()}],
        "settings": {
            **{name: getattr(options, name) for name in _SETTINGS},
            "momentum": MOMENTUM,
            "images": "generated" if options.data is None else "CIFAR-10",
        },
        "gradient_errors": checks,
        "programs": {side: program.to_json() for side, program in made.items()},
        "training": {
            side: {
                "losses": training.losses,
                "seconds": training.seconds,
                "test": training.probes,
            }
            for side, training in trainings.items()
        },
    }
    result["differences"] = {
        side: lenet_report.differences(result["training"][BASELINE], result["training"][side])
        for side in (OURS, CONTROL)
    }
    record.write(record.result_path(options), result)
    print(lenet_report.text(result))
    path = record.result_path(options, "_figure6.png")
    lenet_report.figure6(result, path)
    print(f"drew {path.name}")


_SETTINGS = "batch steps lr seed solver train_images test_images every".split()


def _parser() -> argparse.ArgumentParser:
    shared = record.output_options("lenet")
    parser = argparse.ArgumentParser("python -m bench lenet", parents=[shared])
    parser.add_argument("--data", type=pathlib.Path, help="folder of the official binary files")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=300, help="training steps of each side")
    parser.add_argument("--lr", type=float, default=1e-3, help="of SGD with momentum 0.9")
    parser.add_argument("--solver", choices=tuple(SOLVERS), default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train-images", type=int, default=10000, help="paper: 50000")
    parser.add_argument("--test-images", type=int, default=2000, help="paper: 10000")
    parser.add_argument("--every", type=int, default=30, help="steps between two tests")
    return parser


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
