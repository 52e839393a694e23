"""Interleaved timing: every round runs baseline, candidates, baseline again.

Two programs timed one after the other meet different machines: clocks change, neighbours come
and go. Here each round times them all, and the baseline twice, so a drift is shared (the
baseline of a round is the mean of its two laps) and the ratio of the two laps (A/A) shows what
the machine itself contributes: a speedup closer to 1 than A/A is no result.

Each sample begins with one call that is not timed. A short program would else be timed with the
caches of another program, the baseline less often than its candidates: its two laps meet where one
round ends and the next begins.
"""

import dataclasses
import gc
import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np

from bench.shared import stats

Call = Callable[[], Any]
# Seconds per call of a program that is called this many times.
Sample = Callable[[Call, int], float]
VALUE, FORWARD, VALUE_AND_GRAD = "value", "forward", "value_and_grad"
BACKWARD, GRADIENT = "backward", "gradient"
# What is no program of its own, but the rest of one beside another: the backward half is what the
# forward half leaves over, the gradient what it costs to have one beside the value.
REST = {BACKWARD: (VALUE_AND_GRAD, FORWARD), GRADIENT: (VALUE_AND_GRAD, VALUE)}


class Stopwatch:
    """Seconds since the last lap."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def lap(self) -> float:
        last, self._last = self._last, time.perf_counter()
        return self._last - last


def rounded(number: float) -> float:
    """To five digits, of which a timing has three."""
    return float(f"{number:.5g}")


@dataclasses.dataclass(frozen=True)
class Measurement:
    """Seconds per call of one quantity, in the order they were taken."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return float(np.median(self.seconds))

    @property
    def spread(self) -> float:
        return stats.spread(self.seconds)

    def to_json(self) -> dict[str, Any]:
        return {"median": rounded(self.median), "iqr": rounded(self.spread)}

    def with_samples(self) -> dict[str, Any]:
        """For ratios that are only formed from the file."""
        return {**self.to_json(), "seconds": list(map(rounded, self.seconds))}


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A candidate beside its baseline.

    Attributes:
        baseline: two samples a round, one of each lap.
        candidate: one sample a round.
        speedup: median(baseline) / median(candidate); above 1 the candidate is faster.
        low: lower end of the 95 % bootstrap interval of `speedup`.
        high: its upper end.
        again: median(second lap) / median(first lap) of the baseline: A/A.
    """

    baseline: Measurement
    candidate: Measurement
    speedup: float
    low: float
    high: float
    again: float

    def to_json(self) -> dict[str, Any]:
        names = ("speedup", "low", "high", "again")
        plain = {name: rounded(getattr(self, name)) for name in names}
        sides = {"baseline": self.baseline.to_json(), "candidate": self.candidate.to_json()}
        return {**plain, "rounds": len(self.candidate.seconds), **sides}


@dataclasses.dataclass(frozen=True)
class Race:
    """Samples of a baseline and its candidates.

    Attributes:
        first: seconds per call of the baseline's programs before the candidates, (rounds,) each.
        again: the same after them.
        candidates: the same of every candidate.
    """

    first: Mapping[str, np.ndarray]
    again: Mapping[str, np.ndarray]
    candidates: Mapping[str, Mapping[str, np.ndarray]]

    def compare(self, candidate: str, quantity: str) -> Comparison:
        """The candidate against the baseline in one program, or in a difference of two (`REST`).

        Differences are taken round by round.
        """
        first, again = samples_of(self.first, quantity), samples_of(self.again, quantity)
        baseline, rival = (
            np.stack([first, again], 1),
            samples_of(self.candidates[candidate], quantity),
        )
        low, high = stats.ratio_interval(baseline, rival)
        return Comparison(
            baseline=Measurement(tuple(baseline.ravel().tolist())),
            candidate=Measurement(tuple(rival.tolist())),
            speedup=stats.ratio_of_medians(baseline, rival),
            low=low,
            high=high,
            again=stats.ratio_of_medians(again, first),
        )

    def to_json(self, candidate: str, quantities: Iterable[str]) -> dict[str, Any]:
        """What is recorded of a candidate: its comparison in each quantity."""
        return {quantity: self.compare(candidate, quantity).to_json() for quantity in quantities}


def call_inline() -> None:
    """Runs programs on CPU in the thread that calls them, from before the first array is made.

    By default XLA wakes another thread for all but the shortest programs, which takes 10 to 50 us
    and moves the data to another core: of that much, a value without its gradient is spared.
    """
    jax.config.update("jax_cpu_enable_async_dispatch", False)


def blocking(call: Call, repeats: int) -> float:
    """Latency: blocks after each call, since calls left in flight may overlap."""
    clock = Stopwatch()
    for _ in range(repeats):
        jax.block_until_ready(call())
    return clock.lap() / repeats


def queued(call: Call, repeats: int) -> float:
    """Throughput: blocks after the last call.

    On a GPU calls run one after the other, so this is what the device takes, or what a call
    costs from Python where that is longer.
    """
    clock = Stopwatch()
    results = None
    for _ in range(repeats):
        results = call()
    jax.block_until_ready(results)
    return clock.lap() / repeats


def race(
    baseline: Mapping[str, Call],
    candidates: Mapping[str, Mapping[str, Call]],
    *,
    rounds: int = 25,
    min_rounds: int = 15,
    budget: float = math.inf,
    min_sample: float = 2e-3,
    sample: Sample = blocking,
) -> Race:
    """Times all programs of all sides in interleaved rounds, after a warm-up.

    Args:
        baseline: programs by name; each is called without arguments.
        candidates: the same for every candidate; a program may be missing.
        rounds: how many rounds at most.
        min_rounds: how many at least, whatever the budget.
        budget: seconds that the rounds may take.
        min_sample: seconds that one sample takes at least; short programs are called
            repeatedly.
        sample: how the calls of one sample are timed.

    Returns:
        The samples, in seconds per call.

    Raises:
        ValueError: `rounds` or `min_rounds` is not positive.
    """
    if rounds < 1 or min_rounds < 1:
        raise ValueError(f"rounds and min_rounds must be positive, got {rounds}, {min_rounds}")
    laps = [baseline, *candidates.values(), baseline]
    calls = {id(call): call for lap in laps for call in lap.values()}
    costs = {key: seconds_per_call(call, sample) for key, call in calls.items()}
    repeats = {key: max(1, math.ceil(min_sample / cost)) for key, cost in costs.items()}
    round_cost = sum(
        costs[id(call)] * (1 + repeats[id(call)]) for lap in laps for call in lap.values()
    )
    # Without programs a round costs nothing.
    affordable = min(budget / round_cost, rounds) if round_cost else rounds
    count = min(rounds, max(min_rounds, int(affordable)))
    samples = [{name: np.empty(count) for name in lap} for lap in laps]
    collecting = gc.isenabled()
    gc.disable()
    try:
        for index in range(count):
            for lap, kept in zip(laps, samples, strict=True):
                for name, call in lap.items():
                    sample(call, 1)
                    kept[name][index] = sample(call, repeats[id(call)])
    finally:
        if collecting:
            gc.enable()
    first, *rivals, again = samples
    return Race(first, again, dict(zip(candidates, rivals, strict=True)))


def seconds_per_call(call: Call, sample: Sample = blocking) -> float:
    """A quick estimate after a warm-up: the fastest of 3 calls or 20 ms, at most about 1 s."""
    sample(call, 1)
    fastest, total, count = math.inf, 0.0, 0
    while total < 1 and (count < 3 or total < 0.02):
        taken = sample(call, 1)
        fastest, total, count = min(fastest, taken), total + taken, count + 1
    return fastest


def samples_of(samples: Mapping[str, np.ndarray], quantity: str) -> np.ndarray:
    """The samples of one program, or, where there is no such program, the differences of two."""
    if quantity in REST and quantity not in samples:
        whole, part = REST[quantity]
        return samples[whole] - samples[part]
    return samples[quantity]
