"""VGG-11: trained, pruned, trained again with the pruned weights kept at zero."""

import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import optax

from bench.paper.images import cifar, networks
from bench.paper.recurrent import bitstream
from bench.shared import programs
from bench.shared.training import Trainer, side_by_side
from parscan_bp.layers import Layer
from parscan_bp.pruning import apply_masks, keep_masks, magnitude_masks

SCOPE = "leaf"
"""Each kernel loses the same part: after a short training the global ranking would still be that
of the initial scales, and the last layers would lose all."""


def prepare(
    layers: Sequence[Layer],
    params: Any,
    train: cifar.Images,
    test: cifar.Images,
    *,
    steps: tuple[int, int],
    batch: int,
    learning_rate: float,
    sparsity: float,
    rng: np.random.Generator,
) -> tuple[Any, dict[str, Any]]:
    """Trains, prunes by magnitude, retrains.

    Args:
        layers: the network.
        params: initial parameters.
        train: images to train on.
        test: images to test on.
        steps: before pruning, and after it.
        batch: images of a step.
        learning_rate: of Adam.
        sparsity: part of each kernel that is dropped.
        rng: shuffles.

    Returns:
        The pruned parameters, and losses and test results of the three stages.
    """
    loss = networks.loss(layers, networks.plain)
    score = networks.scorer(layers, test.batch(slice(None)))
    rows = bitstream.shuffled(rng, len(train.labels), batch)

    def fit(optimiser: optax.GradientTransformation, params: Any, count: int) -> tuple[Any, Any]:
        trainer = Trainer(loss, optimiser)
        start = trainer.start(params)
        step = programs.build(trainer.step, start, train.batch(slice(batch))).run
        batches = map(train.batch, rows)
        (done,) = side_by_side({"loss": step}, {"loss": start}, batches, count).values()
        return done.params, {"losses": done.losses, "test": score(done.params)}

    params, trained = fit(optax.adam(learning_rate), params, steps[0])
    masks = magnitude_masks(params, sparsity, scope=SCOPE)
    params = apply_masks(params, masks)
    pruned = {"test": score(params)}
    kept = keep_masks(optax.adam(learning_rate), masks)
    params, retrained = fit(kept, params, steps[1])
    return params, {
        "scope": SCOPE,
        "weights": sum(mask.size for mask in jax.tree.leaves(masks) if mask.ndim > 1),
        "kept": sum(int(mask.sum()) for mask in jax.tree.leaves(masks) if mask.ndim > 1),
        "trained": trained,
        "pruned": pruned,
        "retrained": retrained,
    }


def save(path: pathlib.Path, params: Any) -> None:
    """Writes parameters; zeros take no room."""
    path.parent.mkdir(parents=True, exist_ok=True)
    leaves = jax.tree.leaves(params)
    np.savez_compressed(path, **{str(k): np.asarray(leaf) for k, leaf in enumerate(leaves)})


def restore(path: pathlib.Path, like: Any) -> Any:
    """Reads what `save` wrote.

    Args:
        path: the file.
        like: parameters of the same network, or their shapes.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it holds another network.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path.name} does not exist: run the part 'training' first")
    leaves, tree = jax.tree.flatten(like)
    with np.load(path) as file:
        found = [file[str(k)] for k in range(len(file.files))]
    if [leaf.shape for leaf in found] != [leaf.shape for leaf in leaves]:
        raise ValueError(f"{path.name} holds another network: run the part 'training' again")
    return jax.tree.unflatten(tree, [jax.numpy.asarray(leaf) for leaf in found])
