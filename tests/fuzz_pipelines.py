"""Pipelines that are drawn, against a plain loop over batches in double precision.

    python -m tests.fuzz_pipelines --count 200 --seed 0

Blocks of several kinds and widths, all schedules, optimisers of optax that are run by each block or
by all at once, parts with and without weights, by the simulator and by threads. The loop knows of
schedules only how old the weights of each pass are; see `tests.fuzz` for the options.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from parscan_bp import pipeline
from tests.fuzz import main

BLOCKS: dict[str, Callable[[Any, Any], Any]] = {
    "affine": lambda p, x: x @ p["w"] + p["b"],
    "tanh": lambda p, x: jnp.tanh(x @ p["w"] + p["b"]),
    "gated": lambda p, x: jax.nn.sigmoid(x @ p["w"]) * jnp.sin(x @ p["w"] + p["b"]),
    "normal": lambda p, x: jax.nn.standardize(x @ p["w"] + p["b"], epsilon=0.1),
}
OPTIMISERS: dict[str, tuple[optax.GradientTransformation, bool]] = {
    # Whether it wants all gradients at once.
    "sgd": (optax.sgd(0.05), False),
    "momentum": (optax.sgd(0.05, momentum=0.9, nesterov=True), False),
    "adam": (optax.adam(0.02), False),
    "lamb": (optax.lamb(0.02), False),
    "clip": (optax.chain(optax.clip(0.01), optax.sgd(0.1)), False),
    "rms": (optax.chain(optax.clip_by_block_rms(0.01), optax.sgd(0.1)), False),
    "every 2": (optax.MultiSteps(optax.adam(0.05), 2).gradient_transformation(), False),
    "global norm": (optax.chain(optax.clip_by_global_norm(0.05), optax.adam(0.02)), True),
    "finite": (optax.apply_if_finite(optax.sgd(0.05, momentum=0.9), 99), True),
}
STRENGTH = 0.7
REMEDIES: dict[str, pipeline.Remedy] = {
    "compensation": pipeline.DelayCompensation(STRENGTH),
    "rate": pipeline.LearningRateByStaleness(),
    "prediction": pipeline.WeightPrediction(),
}
"""That a block which is late may have, in this order; `tests/pipeline` has all of them."""


def masked(y: Any, labels: Any) -> Any:
    """Mean over the rows that count; 0 without any."""
    wanted, valid = labels
    rows = jnp.mean((y - wanted) ** 2, axis=-1)
    return jnp.sum(valid * rows) / jnp.maximum(valid.sum(), 1)


def counted(labels: Any) -> Any:
    return labels[1].sum()


@dataclasses.dataclass(frozen=True)
class Ages:
    """A schedule and how many updates late the passes of each block are."""

    schedule: pipeline.Schedule
    forward: tuple[int, ...]
    backward: tuple[int, ...]

    @property
    def flushed(self) -> bool:
        return not any(self.forward + self.backward)


def draw_schedule(rng: np.random.Generator, blocks: int) -> Ages:
    late = tuple(range(blocks - 1, -1, -1))
    none, parts = (0,) * blocks, int(rng.choice([1, 2, 4]))
    p = tuple(int(rng.integers(3)) for _ in range(blocks - 1))
    q = tuple(int(rng.integers(3)) for _ in range(blocks - 1))
    m = [0]
    for down, up in zip(reversed(p), reversed(q), strict=True):
        m.insert(0, m[0] + down + up)
    made = [
        Ages(pipeline.BackPropagation(), none, none),
        Ages(pipeline.GPipe(parts, recompute=bool(rng.integers(2))), none, none),
        Ages(pipeline.OneFOneB(parts), none, none),
        Ages(pipeline.ZeroBubble(parts, lookahead=int(rng.integers(1, 3))), none, none),
        Ages(pipeline.PipeDream(), late, late),
        Ages(pipeline.DelayedGradients(), late, late),
        Ages(pipeline.FeaturesReplay(), late, none),
        Ages(pipeline.PipeDream2BW(4), (1,) * blocks, (1,) * blocks),
        Ages(pipeline.DSP((*p, 0), tuple(m)), tuple(m), none),
    ]
    return made[rng.integers(len(made))]


def attempt(seed: int, index: int) -> tuple[str, str]:
    """A pipeline and how it fails."""
    rng = np.random.default_rng((seed, index))
    blocks = int(rng.integers(1, 5))
    kinds = [str(rng.choice(list(BLOCKS))) for _ in range(blocks)]
    widths = [int(rng.integers(1, 5)) for _ in range(blocks + 1)]
    ages = draw_schedule(rng, blocks)
    name = str(rng.choice(list(OPTIMISERS)))
    optimiser, of_all = OPTIMISERS[name]
    executor = pipeline.Threads() if rng.random() < 0.4 else pipeline.Simulated()
    remedies = [each for each in REMEDIES if not of_all and rng.random() < 0.3]
    text = f"{' '.join(kinds)} {widths} | {ages.schedule} | {name} | {executor} | {remedies}"
    params = [
        {
            "w": jnp.asarray(rng.normal(size=(a, b)) / np.sqrt(a)),
            "b": jnp.asarray(rng.normal(size=b)),
        }
        for a, b in itertools.pairwise(widths)
    ]
    batches = [
        (rng.normal(size=(8, widths[0])), (rng.normal(size=(8, widths[-1])), _valid(rng)))
        for _ in range(ages.schedule.on_the_way(blocks) + 3)
    ]
    if name == "finite":
        batches[1][0][int(rng.integers(8)), 0] = np.nan
    functions = [BLOCKS[kind] for kind in kinds]
    given = (functions, ages.schedule, optimiser, masked, params, batches)
    own = [REMEDIES[each] for each in remedies]
    execute = functools.partial(pipeline.run, *given, executor=executor, remedies=own)
    if of_all and not ages.flushed and blocks > 1:
        return text, _not_refused(lambda: execute(weight=counted), NotImplementedError)
    parts = ages.schedule.parts
    if parts > 1 and rng.random() < 0.15 and _uneven(batches[0], parts):
        return f"{text} | no weight", _not_refused(execute, ValueError)
    got = execute(weight=counted)
    return text, _difference(got, _loop(functions, ages, optimiser, params, batches, remedies))


def _valid(rng: np.random.Generator) -> np.ndarray:
    return (rng.random(8) < rng.choice([0.3, 0.7, 1.0])).astype(float)


def _uneven(batch: Any, parts: int) -> bool:
    """Whether parts without weights have another loss: their counts differ."""
    return len(set(batch[1][1].reshape(parts, -1).sum(1))) > 1


def _not_refused(run: Callable[[], Any], kind: type[Exception]) -> str:
    try:
        run()
    except kind:
        return ""
    return f"runs where {kind.__name__} is wanted"


def _remedied(optimiser: Any, remedies: list[str], late: int) -> Any:
    """(gradient, state, weights now, weights then) -> (updates, state) of a block that is late."""

    def update(gradients: Any, state: Any, now: Any, then: Any) -> Any:
        if "compensation" in remedies and late:
            carried = lambda g, a, b: g + STRENGTH * g * g * (a - b)  # noqa: E731
            gradients = jax.tree.map(carried, gradients, now, then)
        updates, state = optimiser.update(gradients, state, now)
        divisor = late if "rate" in remedies and late else 1
        return jax.tree.map(lambda u: u / divisor, updates), state

    return update


def _loop(
    functions: Any, ages: Ages, optimiser: Any, params: Any, batches: Any, remedies: list[str]
) -> Any:
    """All blocks one after the other; weights of each pass as old as the schedule says."""
    versions = [[own] for own in params]
    made_of = [[jax.tree.map(jnp.zeros_like, own)] for own in params]
    apart = not (ages.flushed and len(params) > 1)
    state = [optimiser.init(own) for own in params] if apart else optimiser.init(params)
    losses = []

    def last(own, h, labels):
        return masked(functions[-1](own, h), labels)

    @jax.jit
    def passes(forward, backward, x, labels):
        inputs = []
        for f, own in zip(functions, forward, strict=True):
            inputs.append(x)
            x = f(own, x)
        loss, gradients = masked(x, labels), []
        for k in reversed(range(len(functions))):
            if k == len(functions) - 1:
                own, ct = jax.grad(last, (0, 1))(backward[k], inputs[k], labels)
            else:
                own, ct = jax.vjp(functions[k], backward[k], inputs[k])[1](ct)
            gradients.insert(0, own)
        return loss, gradients

    @jax.jit
    def moved(gradients, state, newest, forward):
        if apart:
            each = [_remedied(optimiser, remedies, late) for late in ages.forward]
            given = zip(each, gradients, state, newest, forward, strict=True)
            updates, state = map(list, zip(*(own(*rest) for own, *rest in given), strict=True))
        else:
            updates, state = optimiser.update(gradients, state, newest)
        return optax.apply_updates(newest, updates), state, updates

    for n, (x, labels) in enumerate(batches):
        forward, backward = (
            [own[max(0, n - d)] for own, d in zip(versions, late, strict=True)]
            for late in (ages.forward, ages.backward)
        )
        if "prediction" in remedies:
            forward = [
                jax.tree.map(lambda w, u, d=d: w + d * u, own, made[max(0, n - d)])
                for own, made, d in zip(forward, made_of, ages.forward, strict=True)
            ]
            both = zip(forward, backward, ages.backward, strict=True)
            backward = [ahead if late else own for ahead, own, late in both]
        loss, gradients = passes(forward, backward, x, labels)
        losses.append(loss)
        made, state, updates = moved(gradients, state, [own[-1] for own in versions], forward)
        for own, new in ((versions, made), (made_of, updates)):
            for each, latest in zip(own, new, strict=True):
                each.append(latest)
    return [own[-1] for own in versions], losses


def _difference(got: pipeline.Trained, wanted: Any) -> str:
    for name, a, b in (("params", got.params, wanted[0]), ("losses", list(got.losses), wanted[1])):
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
            x, y = np.asarray(x), np.asarray(y)
            if x.dtype != y.dtype or not np.allclose(x, y, rtol=1e-8, atol=1e-9, equal_nan=True):
                return f"{name} differ by {np.max(np.abs(x - y)):.2g} of {np.max(np.abs(y)):.2g}"
    return ""


if __name__ == "__main__":
    main("tests.fuzz_pipelines", attempt)
