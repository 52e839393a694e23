"""Training several programs side by side, with the same batches, a step of each in turn."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import optax
from tqdm import tqdm

from bench.shared import programs, timing


class State(NamedTuple):
    """Parameters and the optimiser's own state."""

    params: Any
    moments: Any


@dataclasses.dataclass(frozen=True)
class Trainer:
    """An optimiser on a loss of `(params, batch)`."""

    loss: programs.Loss
    optimiser: optax.GradientTransformation

    def start(self, params: Any) -> State:
        return State(params, self.optimiser.init(params))

    def step(self, state: State, batch: Any) -> tuple[jax.Array, State]:
        """The loss before the update, and the state after it."""
        value, gradient = jax.value_and_grad(self.loss)(state.params, batch)
        updates, moments = self.optimiser.update(gradient, state.moments, state.params)
        return value, State(optax.apply_updates(state.params, updates), moments)


@dataclasses.dataclass(frozen=True)
class Training:
    """A loss curve: the loss of every step, and the seconds spent training when it was known.

    Attributes:
        params: after the last step.
        losses: one for each step.
        seconds: the same.
        probes: what `probe` returned, by the number of steps done.
    """

    params: Any
    losses: list[float]
    seconds: list[float]
    probes: dict[int, Any]


def side_by_side(
    steps: Mapping[str, Callable[[State, Any], tuple[jax.Array, State]]],
    starts: Mapping[str, State],
    batches: Iterable[Any],
    count: int,
    probe: Callable[[Any], Any] | None = None,
    every: int = 1,
) -> dict[str, Training]:
    """Trains every side for `count` steps from its start, all on one stream of batches.

    Only the compiled step is on the clock: not compilation, not the making of a batch, not the
    probe, which sees the parameters before the first step, after every few, and after the last.
    """
    states = dict(starts)
    losses: dict[str, list[float]] = {side: [] for side in steps}
    seconds: dict[str, list[float]] = {side: [] for side in steps}
    probes: dict[str, dict[int, Any]] = {side: {} for side in steps}

    def look(done: int) -> None:
        if probe is not None and (done % every == 0 or done == count):
            for side, state in states.items():
                probes[side][done] = probe(state.params)

    look(0)
    progress = tqdm(zip(range(count), batches, strict=False), total=count, desc="training")
    for index, batch in progress:
        jax.block_until_ready(batch)
        for side, step in steps.items():
            clock = timing.Stopwatch()
            value, states[side] = jax.block_until_ready(step(states[side], batch))
            seconds[side].append((seconds[side] or [0.0])[-1] + clock.lap())
            losses[side].append(float(value))
        look(index + 1)
        progress.set_postfix({side: f"{curve[-1]:.4f}" for side, curve in losses.items()})
    return {
        side: Training(states[side].params, losses[side], seconds[side], probes[side])
        for side in steps
    }


def control_of(side: str) -> str:
    """The name of a side that starts one ulp away."""
    return f"{side}, 1 ulp away"


def train_sides(
    steps: Mapping[str, programs.Program],
    trainers: Mapping[str, Trainer],
    params: Any,
    batches: Iterable[Any],
    count: int,
    **probing: Any,
) -> dict[str, Training]:
    """Every side from the same parameters, and the first, the baseline, from one ulp away too.

    That is how far rounding alone drives training apart; it is called `control_of` the first.

    Args:
        steps: the compiled step of each side.
        trainers: the same.
        params: what they start from.
        batches, count: as in `side_by_side`, which takes `probing`.
    """
    plain = next(iter(steps))
    runs = {side: step.run for side, step in steps.items()}
    starts = dict.fromkeys(steps, trainers[plain].start(params))
    runs[control_of(plain)] = runs[plain]
    starts[control_of(plain)] = trainers[plain].start(programs.one_ulp_up(params))
    return side_by_side(runs, starts, batches, count, **probing)
