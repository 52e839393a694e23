"""Accuracy of every schedule: figures 3 to 5, Tables 1 and 4 of DSP, in shape."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import optax

from bench.paper.pipeline import networks, tasks
from bench.shared.bench import Options, Result
from parscan_bp import pipeline
from parscan_bp.pipeline import DSP

PARTS = 4
SCHEDULES: dict[str, tuple[pipeline.Schedule, int]] = {
    "BP": (pipeline.BackPropagation(), 3),
    "GPipe": (pipeline.GPipe(PARTS), 3),
    "1F1B": (pipeline.OneFOneB(PARTS), 3),
    "zero bubble": (pipeline.ZeroBubble(PARTS), 3),
    "FR": (pipeline.FeaturesReplay(), 3),
    "DDG": (pipeline.DelayedGradients(), 3),
    "PipeDream": (pipeline.PipeDream(), 3),
    "2BW": (pipeline.PipeDream2BW(PARTS), 3),
    **{
        str(schedule): (schedule, len(schedule.p))
        for schedule in (
            DSP((1, 1, 0), (4, 2, 0)),
            DSP((2, 2, 0), (6, 3, 0)),
            DSP((3, 3, 0), (10, 5, 0)),
            DSP((1, 1, 1, 0), (6, 4, 2, 0)),
            DSP((2, 2, 2, 0), (9, 6, 3, 0)),
            DSP((3, 3, 3, 0), (15, 10, 5, 0)),
        )
    },
    "FR, K=4": (pipeline.FeaturesReplay(), 4),
}
"""By name the schedule and K; BP, and what is as good as it, learns the same whatever K is."""


def points(options: Options) -> dict[str, tuple]:
    """One for each task, learning rate and schedule."""
    return {
        f"{task} rate {rate:g} {name}": ("accuracy", task, rate, name)
        for task, rates in (("images", options.lr), ("digits", options.digits_lr))
        for rate in rates
        for name in SCHEDULES
    }


def measure(point: tuple, options: Options) -> Result:
    """Trains with the schedule once for each seed."""
    _, task_name, rate, name = point
    schedule, blocks = SCHEDULES[name]
    task = tasks.task_of(task_name, options)
    optimiser = sgd(rate, options.momentum)
    runs = [run(task, schedule, optimiser, blocks, seed, options) for seed in range(options.seeds)]
    return {
        "part": "accuracy",
        "task": task_name,
        "rate": rate,
        "schedule": name,
        "blocks": blocks,
        "time_per_batch": pipeline.time_per_batch(schedule, blocks),
        "batches_per_epoch": len(task.train.labels) // options.batch,
        "runs": runs,
    }


def run(
    task: tasks.Task,
    schedule: pipeline.Schedule,
    optimiser: optax.GradientTransformation,
    blocks: int,
    seed: int,
    options: Options,
    remedies: Sequence[pipeline.Remedy] = (),
) -> Result:
    """Trains once: the mean loss of every epoch, and the test accuracy after it."""
    network = task.network(blocks)
    params, states = network.init(seed)
    epoch = len(task.train.labels) // options.batch
    batches = task.batches(options.batch, epoch * options.epochs, seed)
    accuracies: list[float] = []

    def look(doing: pipeline.Task, pipe: Any) -> None:
        # The first block is the last to be updated by a batch.
        done = doing.kind == "update" and doing.block == 0 and (doing.batch + 1) % epoch == 0
        if done:
            newest = [pipe.newest(k) for k in range(blocks)]
            accuracies.append(task.accuracy(network, newest, pipe.states))

    made = pipeline.run(
        network.blocks,
        schedule,
        optimiser,
        networks.loss,
        params,
        batches,
        states=states,
        remedies=remedies,
        executor=pipeline.Simulated(observe=look),
    )
    losses = np.asarray(made.losses).reshape(options.epochs, epoch).mean(1)
    return {"losses": list(map(_finite, losses)), "accuracies": accuracies}


def best(runs: Sequence[Result]) -> list[float]:
    """Best test accuracy of each seed."""
    return [max(run["accuracies"]) for run in runs]


@functools.cache
def sgd(rate: float, momentum: float) -> optax.GradientTransformation:
    """One for all runs: its updates are compiled once."""
    return optax.sgd(rate, momentum=momentum)


def _finite(value: float) -> float | None:
    """A number for JSON; ``None`` where training diverged."""
    return float(f"{value:.5g}") if math.isfinite(value) else None
