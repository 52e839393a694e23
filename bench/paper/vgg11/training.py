"""VGG-11: trained, pruned in stages, after each trained again with the pruned weights at zero."""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import optax

from bench.paper.images import cifar, networks, normalised
from bench.paper.recurrent import bitstream
from bench.shared import programs
from bench.shared.training import Trainer, side_by_side
from parscan_bp.layers import Layer
from parscan_bp.pruning import keep_masks, magnitude_masks

SCOPES: Mapping[str, str] = {"class-blind": "global", "class-uniform": "leaf"}
"""By which weights are ranked: those of all kernels together, or of each kernel; and as
`magnitude_masks` calls it. Source: See, Luong and Manning (2016), section 3.2."""
SCOPE = "class-blind"
"""Of the network that is timed and drawn."""
STATISTICS = 2000
"""Training images of which the mean and variance are folded into the convolutions."""
Fit = Callable[..., tuple[Any, dict[str, Any]]]


def fit(
    layers: Sequence[Layer],
    train: cifar.Images,
    test: cifar.Images,
    batch: int,
    rng: np.random.Generator,
) -> Fit:
    """A function that trains: optimiser, parameters and steps to parameters and a report.

    Convolutions are normalised in training, and folded afterwards; those of parameters that are
    not `fresh` are unfolded before. Images are shifted and mirrored at random. The report has the
    mean loss of every epoch, and loss and accuracy of the plain network on the test images.

    Args:
        layers: the network.
        train: images to train on.
        test: images to test on.
        batch: images of a step.
        rng: shuffles and shifts.
    """
    loss = networks.loss(layers, normalised.forward)
    score = networks.scorer(layers, test.batch(slice(None)))
    rows = bitstream.shuffled(rng, len(train.labels), batch)
    epoch = len(train.labels) // batch
    seen = train.batch(slice(STATISTICS)).images

    def of(
        optimiser: optax.GradientTransformation, params: Any, steps: int, *, fresh: bool = False
    ) -> tuple[Any, dict[str, Any]]:
        params = params if fresh else normalised.unfold(layers, params, seen)
        trainer = Trainer(loss, optimiser)
        start = trainer.start(params)
        step = programs.build(trainer.step, start, train.batch(slice(batch))).run
        batches = (train.take(r).jittered(rng).batch(slice(None)) for r in rows)
        (done,) = side_by_side({"loss": step}, {"loss": start}, batches, steps).values()
        losses = [float(np.mean(done.losses[k : k + epoch])) for k in range(0, steps, epoch)]
        folded = normalised.fold(layers, done.params, seen)
        return folded, {"losses": losses, "test": score(folded)}

    return of


def optimiser(rate: float, steps: int) -> optax.GradientTransformation:
    """Adam, whose rate falls to 0 along a cosine."""
    return optax.adam(optax.cosine_decay_schedule(rate, steps))


def prune(
    fit: Fit,
    params: Any,
    scope: str,
    sparsities: Sequence[float],
    steps: Sequence[int],
    rate: float,
) -> tuple[Any, dict[str, Any]]:
    """Drops the weights of least magnitude, more of them in each stage, and retrains after each.

    Args:
        fit: trains.
        params: of a network that has learned.
        scope: one of `SCOPES`.
        sparsities: part of the weights that is dropped by the end of each stage.
        steps: of retraining, of each stage.
        rate: of each stage's first step.

    Returns:
        The pruned parameters; how many weights are kept, of how many, in each kernel; and for each
        stage losses and the test's results.
    """
    stages = []
    for sparsity, count in zip(sparsities, steps, strict=True):
        masks = magnitude_masks(params, sparsity, scope=SCOPES[scope])
        kept = keep_masks(optimiser(rate, count), masks)
        # The first step drops them: means are those of the network before.
        params, report = fit(kept, params, count)
        stages.append({"sparsity": sparsity, **report})
    kernels = [mask for mask in jax.tree.leaves(masks) if mask.ndim > 1]
    return params, {
        "stages": stages,
        "weights": [mask.size for mask in kernels],
        "kept": [int(mask.sum()) for mask in kernels],
        "test": stages[-1]["test"],
    }


def save(path: pathlib.Path, params: Any) -> None:
    """Writes parameters; zeros take no room."""
    path.parent.mkdir(parents=True, exist_ok=True)
    leaves = jax.tree.leaves(params)
    np.savez_compressed(path, **{str(k): np.asarray(leaf) for k, leaf in enumerate(leaves)})


def restore(path: pathlib.Path, like: Any, part: str) -> Any:
    """Reads what `save` wrote.

    Args:
        path: the file.
        like: parameters of the same network, or their shapes.
        part: of the bench that writes it, for the errors.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it holds another network.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path.name} does not exist: run the part '{part}' first")
    leaves, tree = jax.tree.flatten(like)
    with np.load(path) as file:
        found = [file[str(k)] for k in range(len(file.files))]
    if [leaf.shape for leaf in found] != [leaf.shape for leaf in leaves]:
        raise ValueError(f"{path.name} holds another network: run the part '{part}' again")
    return jax.tree.unflatten(tree, [jax.numpy.asarray(leaf) for leaf in found])
