"""VGG-11 on CIFAR-10, pruned: flops and seconds of every scan over its Jacobians (BPPSA 5.3).

Trains, prunes 97 % of the weights by magnitude in stages and retrains after each, once with all
weights ranked together and once those of each kernel; then counts and times BP, the sparse linear
scan, the truncated and the whole scan of Algorithm 1, and the planner's schedule. With `--data
FOLDER` the images are those of the official binary files, else generated ones. A quarter of the
paper's channels learns in half an hour on two cores; `--divisor 1` has all. With `--resume` some
parts are measured again, or the missing ones, and the others are those of the file; weights are
beside `--checkpoint`.
"""

import json
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from bench.paper.images import cifar, networks
from bench.paper.vgg11 import chain, counts, figures, report, step_counts, times, training
from bench.shared import record
from bench.shared.bench import Bench, Option, Options, Result, Whole
from parscan_bp.layers import Conv, init

COLLAPSING = 2
"""Convolutions at the end that XLA runs on 2x2 maps, at a small part of its usual rate on CPUs."""


class Parts:
    """The parts of the result, and what they share."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.parts: dict[str, Callable[[], Any]] = {
            "training": self.train,
            "pruning": self.prune,
            "counts": self.count,
            "steps": self.time_steps,
            "chains": self.time_chains,
            "memory": self.measure_memory,
        }
        rng = np.random.default_rng(options.seed)
        images = cifar.load(options.data, rng, options.train_images, options.test_images)
        if options.size != cifar.SIZE:
            images = tuple(own.shrunk(options.size) for own in images)
        self.test_images = images[1]
        self.network = networks.vgg11(options.size, options.divisor)
        self.layers = counts.features(self.network)
        self._epoch = options.train_images // options.batch
        self._fit = training.fit(self.network, *images, options.batch, rng)
        shape = (options.size, options.size, cifar.CHANNELS)
        key = jax.random.key(options.seed)
        self.fresh = jax.jit(lambda key: init(self.network, key, shape, np.float32))(key)

    def train(self) -> dict[str, Any]:
        """Trains; writes the checkpoint."""
        count = self.options.epochs * self._epoch
        adam = training.optimiser(self.options.lr, count)
        params, report = self._fit(adam, self.fresh, count, fresh=True)
        training.save(self._checkpoint("trained"), params)
        kernels = [leaf.size for leaf in jax.tree.leaves(params) if leaf.ndim > 1]
        return {"weights": sum(kernels), **report}

    def prune(self) -> dict[str, Any]:
        """Prunes and trains again, by each scope; writes the checkpoints."""
        options, found = self.options, {}
        params = training.restore(self._checkpoint("trained"), self.fresh, "training")
        counts = [epochs * self._epoch for epochs in options.retraining]
        for scope in training.SCOPES:
            pruned, found[scope] = training.prune(
                self._fit, params, scope, options.sparsity, counts, options.lr
            )
            training.save(self._checkpoint(scope), pruned)
        return found

    def count(self) -> dict[str, Any]:
        """Flops of every scan in every convention, of the network pruned by each scope."""
        image = self._images(1)[0]
        return {
            scope: counts.count(self.layers, self.pruned(scope), image) for scope in training.SCOPES
        }

    def pruned(self, scope: str = training.SCOPE) -> Any:
        """Parameters of the convolutional part, from the checkpoint."""
        params = training.restore(self._checkpoint(scope), self.fresh, "pruning")
        return params[: len(self.layers)]

    def _checkpoint(self, what: str) -> pathlib.Path:
        path = self.options.checkpoint
        return path.with_stem(f"{path.stem}_{what}")

    def time_steps(self) -> dict[str, Any]:
        """Seconds of every step of every scan, alone."""
        # Parts are written one by one: this run has counted, or the one that is gone on with.
        counted = json.loads(record.result_path(self.options).read_text())
        conventions = counted["counts"][training.SCOPE]["conventions"]
        found: dict[str, Any] = {}
        for zeros in (step_counts.FULL_WEIGHTS, step_counts.STATIC):
            masked = zeros == step_counts.STATIC
            params = self.pruned() if masked else self.fresh[: len(self.layers)]
            of = chain.chain(self.layers, params, self._images(1), masked=masked)
            scans = conventions[zeros]["scans"]
            flops = {levels: scan["steps"]["flops"] for levels, scan in scans.items()}
            # Blocks of channels multiply fast, single entries slowly and with long plans.
            most = self.options.most if masked else 100 * self.options.most
            found[zeros] = times.steps_alone(of, flops, most)
        of = chain.chain(self.layers, self.pruned(), self._images(1), masked=True)
        return {
            "seconds": found,
            "bp": times.layers_alone(of),
            "product_rate": times.product_rate(),
        }

    def time_chains(self) -> dict[str, Any]:
        """Seconds of whole scans against XLA's VJP."""
        found: dict[str, Any] = {}
        for part, layers in self._chains().items():
            for batch in self.options.batches:
                params = self.pruned()[: len(layers)]
                of = chain.chain(layers, params, self._images(batch), masked=True)
                timed = times.chains(of, self.options.most * batch)
                found.setdefault(part, {})[str(batch)] = timed
        return found

    def measure_memory(self) -> dict[str, Any]:
        """Bytes of the plan under the limit, and of scans."""
        images, limit = self._images(max(self.options.batches)), self.options.memory_limit
        params = self.fresh[: len(self.layers)]
        of = chain.chain(self.layers, params, images, masked=False)
        return times.memory(of, limit)

    def _images(self, count: int) -> jax.Array:
        return self.test_images.batch(slice(count)).images

    def _chains(self) -> dict[str, Any]:
        """All layers, and those before the convolutions on 2x2 maps."""
        at = [k for k, layer in enumerate(self.layers) if isinstance(layer, Conv)]
        return {
            "all layers": self.layers,
            f"without the last {COLLAPSING} convolutions": self.layers[: at[-COLLAPSING]],
        }


def points(options: Options) -> dict[str, tuple[str, Callable[[], Any]]]:
    """The parts, in the order in which they rest on each other."""
    return {name: (name, part) for name, part in Parts(options).parts.items()}


def measure(point: tuple[str, Callable[[], Any]], options: Options) -> Result:
    """One part.

    Raises:
        FloatingPointError: a scan's cotangents are not those of XLA's VJP.
        FileNotFoundError: the network was never trained.
    """
    name, part = point
    return {name: part()}


BENCH = Bench(
    "vgg11",
    __doc__,
    baseline="XLA's VJP; of counts, unpruned back-propagation and the linear scan",
    points=points,
    measure=measure,
    rows=Whole(),
    text=report.text,
    options=(
        Option("data", None, "folder of the official binary files", kind=pathlib.Path),
        Option("checkpoint", record.HERE / "out" / "vgg11.npz", kind=pathlib.Path),
        Option("size", cifar.SIZE, "of the images"),
        Option("divisor", 4, "of the numbers of channels"),
        Option("epochs", 30, "before pruning"),
        Option("sparsity", [0.8, 0.9, 0.95, 0.97], "by the end of each stage of pruning"),
        Option("retraining", [5, 5, 10, 60], "epochs after each stage of pruning"),
        Option("batch", 100, "of the training"),
        Option("batches", [1, 8], "that are timed"),
        Option("lr", 2e-3, "of Adam"),
        Option("train-images", 10000),
        Option("test-images", 2000),
        Option("seed", 0),
        Option("most", 1e7, "flop of a step that is run"),
        Option("memory-limit", 10**9, "bytes, for the largest batch"),
    ),
    quick={
        **{"size": 16, "divisor": 16, "train_images": 128, "test_images": 64, "batch": 16},
        **{"batches": [2], "epochs": 1, "sparsity": [0.6, 0.8], "retraining": [1, 1]},
    },
    facts=lambda options: {
        "settings": {"images": "generated" if options.data is None else "CIFAR-10"}
    },
    draw=figures.draw,
    fixed=("size", "divisor", "sparsity", "seed"),
)
