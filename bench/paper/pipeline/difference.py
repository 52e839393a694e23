"""How far DSP's gradient is from back-propagation's: figure 4, with Lemma 1's bound."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bench.paper.pipeline import networks, tasks
from bench.paper.pipeline.accuracy import SCHEDULES
from bench.shared.bench import Options, Result
from parscan_bp import pipeline

SHOWN = ("DSP(1,1,0;4,2,0)", "DSP(2,2,0;6,3,0)", "DSP(3,3,0;10,5,0)")
"""The shortest queues first: `constants` are taken of it, for the others."""


def points(options: Options) -> dict[str, tuple]:
    """The three configurations of three blocks, on images, at the first learning rate."""
    return {f"difference {name}": ("difference", name) for name in SHOWN}


def measure(point: tuple, options: Options) -> Result:
    """Trains once; every few batches, both gradients of the batch.

    Lemma 1 bounds the norm of the difference at block k, by replacing the backward weights of one
    block after the other with its forward ones, by a constant times the way that the weights of
    the blocks above went in between, sum_{i >= k} |w_i^b - w_i^f|. The constant (Lipschitz
    constant times error gradient) is not known: `constants` has the least of another run.
    """
    schedule, blocks = SCHEDULES[point[1]]
    assert isinstance(schedule, pipeline.DSP)
    task = tasks.task_of("images", options)
    network = task.network(blocks)
    params, states = network.init(0)
    epoch = len(task.train.labels) // options.batch
    batches = tasks.Batches(task.train, options.batch, epoch * options.epochs, 0)
    rate = options.lr[0]
    decay_at = 2 * len(batches) // 3
    every = max(1, len(batches) // options.samples)
    history: list[dict[int, Any]] = [{0: own} for own in params]
    gradients: dict[tuple[int, int], Any] = {}
    found: list[Result] = []

    def look(doing: pipeline.Task, pipe: Any) -> None:
        if doing.kind != "update":
            return
        k, n = doing.block, doing.batch
        history[k][n + 1] = pipe.newest(k)
        history[k].pop(n - schedule.m[0] - 2, None)
        if n % every:
            return
        gradients[k, n] = pipe.gradient
        if k == 0:
            forward = [history[i][max(0, n - m)] for i, m in enumerate(schedule.m)]
            backward = [history[i][n] for i in range(blocks)]
            plain = _gradient(network)(forward, states, *batches[n])
            ours = [gradients.pop((i, n)) for i in range(blocks)]
            found.append({"batch": n, **_compare(ours, plain, forward, backward)})

    steps = optax.piecewise_constant_schedule(rate, {decay_at: 0.1})
    pipeline.run(
        network.blocks,
        schedule,
        optax.sgd(steps, momentum=options.momentum),
        networks.loss,
        params,
        batches,
        states=states,
        executor=pipeline.Simulated(observe=look),
    )
    return {"part": "difference", "schedule": point[1], "decay_at": decay_at, "samples": found}


def constants(samples: Sequence[Result]) -> list[float]:
    """For each block the least constant for which Lemma 1's bound holds in a run; 0 at the last."""
    return [
        max((d / way for d, way in pairs if way > 0), default=0.0)
        for pairs in _pairs_by_block(samples)
    ]


def quotients(samples: Sequence[Result], of: Sequence[float]) -> list[list[float]]:
    """For each block but the last: the difference over the bound with these constants."""
    return [
        [d / (constant * way) for d, way in pairs if way > 0]
        for constant, pairs in zip(of[:-1], _pairs_by_block(samples), strict=False)
    ]


def _pairs_by_block(samples: Sequence[Result]) -> list[list[tuple[float, float]]]:
    each = [list(zip(s["difference"], s["way"], strict=True)) for s in samples]
    return [list(block) for block in zip(*each, strict=True)]


def _compare(
    ours: Sequence[Any], plain: Sequence[Any], forward: Sequence[Any], backward: Sequence[Any]
) -> Result:
    apart = [_distance(a, b) for a, b in zip(ours, plain, strict=True)]
    sizes = [_distance(own, jax.tree.map(jnp.zeros_like, own)) for own in plain]
    ways = [_distance(a, b) for a, b in zip(backward, forward, strict=True)]
    above = np.cumsum(ways[::-1])[::-1]
    return {"difference": apart, "gradient": sizes, "way": above.tolist()}


def _distance(a: Any, b: Any) -> float:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return float(np.sqrt(sum(float(jnp.sum((x - y) ** 2)) for x, y in pairs)))


@functools.cache
def _gradient(network: networks.Network):
    """Back-propagation through all blocks at once, in training."""

    @jax.jit
    def gradient(params, states, x, labels):
        def value(params):
            y = x
            for block, own, state in zip(network.blocks, params, states, strict=True):
                y, _ = block.apply(own, state, y, jax.random.key(0))
            return networks.loss(y, labels)

        return jax.grad(value)(params)

    return gradient
