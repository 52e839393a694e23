"""VGG-11 on CIFAR-10, pruned: flops and seconds of every scan over its Jacobians (BPPSA 5.3).

Trains, prunes 97 % of each kernel by magnitude, retrains; then counts and times BP, the sparse
linear scan, the truncated and the whole scan of Algorithm 1, and the planner's schedule. With
`--data FOLDER` the images are those of the official binary files, else generated ones. The
pattern of the Jacobians matters here, not the accuracy: training is short. Parts that are not
named in `--parts` are taken from the files of an earlier run.
"""

import argparse
import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from bench import (
    cifar,
    networks,
    record,
    step_counts,
    vgg11_chain,
    vgg11_counts,
    vgg11_figures,
    vgg11_report,
    vgg11_times,
    vgg11_training,
)
from parscan_bp.layers import Conv, init

COLLAPSING = 2
"""Convolutions at the end that XLA runs on 2x2 maps, at a small part of its usual rate on CPUs."""
QUICK = {
    "size": 16,
    "divisor": 16,
    "train_images": 128,
    "test_images": 64,
    "batch": 16,
    "batches": [2],
    "steps": [4, 3],
    "sparsity": 0.8,
}


def main(argv: Sequence[str]) -> None:
    """Runs the parts, writes JSON and figures, prints tables.

    Raises:
        FloatingPointError: a scan's cotangents are not those of XLA's VJP.
        FileNotFoundError: a part that is needed was never run.
    """
    options = _parser().parse_args(argv)
    if options.quick:
        vars(options).update(QUICK)
    path = record.result_path(options)
    earlier = path.exists() and set(options.parts) != set(_PARTS)
    result = json.loads(path.read_text()) if earlier else {}
    run = record.environment(argv)
    bench = _Bench(options)
    for part in options.parts:
        result[part] = bench.parts[part](result)
    result["settings"] = {name: getattr(options, name) for name in _SETTINGS}
    result["settings"]["images"] = "generated" if options.data is None else "CIFAR-10"
    run = {**run, "parts": options.parts, "load_end": record.load_average()}
    result["runs"] = [*result.get("runs", []), run]
    record.write(path, result)
    print(vgg11_report.text(result))
    for name, (draw, parts) in vgg11_figures.FIGURES.items():
        if not parts <= result.keys():
            continue
        figure = record.result_path(options, f"_{name}.png")
        draw(result, figure)
        print(f"drew {figure.name}")


_SETTINGS = (
    *"size divisor train_images test_images batch batches steps".split(),
    *"lr sparsity seed most memory_limit".split(),
)


class _Bench:
    """The parts, each a function of the result so far."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.parts: dict[str, Callable[[dict[str, Any]], Any]] = {
            "training": self.train,
            "counts": self.count,
            "steps": self.time_steps,
            "chains": self.time_chains,
            "memory": self.measure_memory,
        }
        rng = np.random.default_rng(options.seed)
        images = cifar.load(options.data, rng, options.train_images, options.test_images)
        self.rng, (self.train_images, self.test_images) = rng, images
        if options.size != cifar.SIZE:
            self.train_images = self.train_images.shrunk(options.size)
            self.test_images = self.test_images.shrunk(options.size)
        self.network = networks.vgg11(options.size, options.divisor)
        self.layers = vgg11_counts.features(self.network)
        shape = (options.size, options.size, cifar.CHANNELS)
        key = jax.random.key(options.seed)
        self.fresh = jax.jit(lambda key: init(self.network, key, shape, np.float32))(key)

    @property
    def pruned(self) -> Any:
        return vgg11_training.restore(self.options.checkpoint, self.fresh)[: len(self.layers)]

    def train(self, result: dict[str, Any]) -> dict[str, Any]:
        options = self.options
        params, report = vgg11_training.prepare(
            self.network,
            self.fresh,
            self.train_images,
            self.test_images,
            steps=tuple(options.steps),
            batch=options.batch,
            learning_rate=options.lr,
            sparsity=options.sparsity,
            rng=self.rng,
        )
        vgg11_training.save(options.checkpoint, params)
        return report

    def count(self, result: dict[str, Any]) -> dict[str, Any]:
        return vgg11_counts.count(self.layers, self.pruned, self._images(1)[0])

    def time_steps(self, result: dict[str, Any]) -> dict[str, Any]:
        conventions = result["counts"]["conventions"]
        found: dict[str, Any] = {}
        for zeros in (step_counts.FULL_WEIGHTS, step_counts.STATIC):
            masked = zeros == step_counts.STATIC
            params = self.pruned if masked else self.fresh[: len(self.layers)]
            of = vgg11_chain.chain(self.layers, params, self._images(1), masked=masked)
            scans = conventions[zeros]["scans"]
            flops = {levels: scan["steps"]["flops"] for levels, scan in scans.items()}
            # Blocks of channels multiply fast, single entries slowly and with long plans.
            most = self.options.most if masked else 100 * self.options.most
            found[zeros] = vgg11_times.steps_alone(of, flops, most)
        of = vgg11_chain.chain(self.layers, self.pruned, self._images(1), masked=True)
        return {
            "seconds": found,
            "bp": vgg11_times.layers_alone(of),
            "product_rate": vgg11_times.product_rate(),
        }

    def time_chains(self, result: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for part, layers in self._chains().items():
            for batch in self.options.batches:
                params = self.pruned[: len(layers)]
                of = vgg11_chain.chain(layers, params, self._images(batch), masked=True)
                names = vgg11_counts.names(layers)[1:]
                times = vgg11_times.chains(of, names, self.options.most * batch)
                found.setdefault(part, {})[str(batch)] = times
        return found

    def measure_memory(self, result: dict[str, Any]) -> dict[str, Any]:
        images, limit = self._images(max(self.options.batches)), self.options.memory_limit
        params = self.fresh[: len(self.layers)]
        of = vgg11_chain.chain(self.layers, params, images, masked=False)
        return vgg11_times.memory(of, limit)

    def _images(self, count: int) -> jax.Array:
        return self.test_images.batch(slice(count)).images

    def _chains(self) -> dict[str, Any]:
        """All layers, and those before the convolutions on 2x2 maps."""
        at = [k for k, layer in enumerate(self.layers) if isinstance(layer, Conv)]
        return {
            "all layers": self.layers,
            f"without the last {COLLAPSING} convolutions": self.layers[: at[-COLLAPSING]],
        }


_PARTS = ("training", "counts", "steps", "chains", "memory")


def _parser() -> argparse.ArgumentParser:
    shared = record.output_options("vgg11")
    parser = argparse.ArgumentParser("python -m bench vgg11", parents=[shared])
    parser.add_argument("--data", type=pathlib.Path, help="folder of the official binary files")
    parser.add_argument("--quick", action="store_true", help="a narrow network, small images")
    parser.add_argument("--parts", nargs="+", choices=_PARTS, default=list(_PARTS))
    parser.add_argument(
        "--checkpoint", type=pathlib.Path, default=record.HERE / "out" / "vgg11.npz"
    )
    parser.add_argument(
        "--steps", type=int, nargs=2, default=[60, 40], help="before, after pruning"
    )
    parser.add_argument("--batch", type=int, default=32, help="of the training")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8], help="that are timed")
    parser.add_argument("--lr", type=float, default=3e-4, help="of Adam")
    parser.add_argument("--sparsity", type=float, default=0.97)
    parser.add_argument("--train-images", type=int, default=10000)
    parser.add_argument("--test-images", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most", type=float, default=1e7, help="flop of a step that is run")
    parser.add_argument(
        "--memory-limit", type=int, default=10**9, help="bytes, for the largest batch"
    )
    parser.set_defaults(size=cifar.SIZE, divisor=1)
    return parser
