"""Which remedy closes how much of the gap that late gradients open."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bench.paper.pipeline import networks, tasks
from bench.shared.bench import Options, Result
from parscan_bp import pipeline

DELAYS = (2, 8, 16)
Make = Callable[[float], optax.GradientTransformation]
OPTIMISERS: Mapping[str, Make] = {
    "SGD": lambda rate: optax.sgd(rate, momentum=0.9),
    "Adam": optax.adam,
    "Muon": optax.contrib.muon,
}
RATES = {"SGD": 0.01, "Adam": 1e-3, "Muon": 5e-3}
"""At which the network learns without a delay."""
REMEDIES: dict[str, tuple[pipeline.Remedy, ...]] = {
    "none": (),
    "learning rate": (pipeline.LearningRateByStaleness(),),
    "annealed rate": (pipeline.LearningRateByStaleness(anneal=200),),
    "compensation": (pipeline.DelayCompensation(1.0, decay=0.95),),
    "feedback": (pipeline.ErrorFeedback(),),
    "prediction": (pipeline.WeightPrediction(),),
}
BLOCKS = 3


def points(options: Options) -> dict[str, tuple]:
    """One for each optimiser and delay."""
    delays = DELAYS[: options.delays]
    return {f"remedies {name} d={d}": ("remedies", name, d) for name in OPTIMISERS for d in delays}


def measure(point: tuple, options: Options) -> Result:
    """Trains the plain net on digits without a delay, with it, and with each remedy."""
    _, name, delay = point
    task = tasks.task_of("digits", options)
    optimiser = OPTIMISERS[name](RATES[name])
    sides = {"no delay": optimiser} | {
        side: pipeline.stale(optimiser, delay, remedies=remedies)
        for side, remedies in REMEDIES.items()
    }
    runs = {
        side: train_all(task, own, side == "prediction", options) for side, own in sides.items()
    }
    return {
        "part": "remedies",
        "optimiser": name,
        "delay": delay,
        "rate": RATES[name],
        "runs": runs,
    }


def train_all(task: tasks.Task, optimiser: Any, predict: bool, options: Options) -> list[Result]:
    """The last losses (mean of a tenth of the steps) and the test accuracy of each seed.

    With ``predict`` gradients are taken at `stale_params`.
    """
    network, made = task.network(BLOCKS), []
    train = _train(network, optimiser, predict)
    for seed in range(options.seeds):
        params, states = network.init(seed)
        batches = tasks.Batches(task.train, options.batch, options.steps, seed)
        x, labels = (jnp.stack(each) for each in zip(*batches, strict=True))
        params, losses = train(params, states, x, labels)
        last = float(np.mean(losses[-max(1, options.steps // 10) :]))
        made.append(
            {
                "loss": last if math.isfinite(last) else None,
                "accuracy": task.accuracy(network, params, states),
            }
        )
    return made


def _train(network: networks.Network, optimiser: Any, predict: bool):
    """All steps in one program."""

    @jax.jit
    def train(params, states, x, labels):
        def value(params, x, labels):
            for block, own, state in zip(network.blocks, params, states, strict=True):
                x, _ = block.apply(own, state, x, jax.random.key(0))
            return networks.loss(x, labels)

        def step(carry, batch):
            params, state = carry
            at = pipeline.stale_params(state, params) if predict else params
            loss, gradient = jax.value_and_grad(value)(at, *batch)
            updates, state = optimiser.update(gradient, state, params)
            return (optax.apply_updates(params, updates), state), loss

        (params, _), losses = jax.lax.scan(step, (params, optimiser.init(params)), (x, labels))
        return params, losses

    return train


def closed(runs: dict[str, list[Result]], side: str) -> float | None:
    """The share of the gap between "none" and "no delay" that a remedy closes, of mean losses.

    ``None`` where there is no gap that is larger than the seeds are apart, or no number: the run
    without a remedy diverged.
    """
    means = {name: mean_loss(runs[name]) for name in ("no delay", "none", side)}
    if any(mean is None for mean in means.values()):
        return None
    gap = means["none"] - means["no delay"]
    if gap <= max(spread(runs[name]) for name in ("no delay", "none")):
        return None
    return (means["none"] - means[side]) / gap


def spread(runs: list[Result]) -> float:
    """How far the last losses of the seeds are apart, where none diverged."""
    losses = [run["loss"] for run in runs]
    return max(losses) - min(losses)


def mean_loss(runs: list[Result]) -> float | None:
    """Of all seeds; ``None`` if one diverged."""
    losses = [run["loss"] for run in runs]
    return None if None in losses else float(np.mean(losses))
