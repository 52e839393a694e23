"""Programs timed beside each other: every round times them all, so that a drift is shared."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

SAMPLE_SECONDS = 2e-3
"""Least time of one sample: a shorter program is called several times for it."""
LEAST_ROUNDS = 7
MOST_ROUNDS = 200


@dataclasses.dataclass(frozen=True)
class Race:
    """Samples of programs.

    Attributes:
      seconds: for each program, the seconds of one call in every round.
    """

    seconds: Mapping[str, np.ndarray]

    def median(self, name: str) -> float:
        return float(np.median(self.seconds[name]))

    def speedup(self, name: str, over: str) -> tuple[float, float, float]:
        """How many times as fast a program is as another, with the ends of a 95 % interval.

        Rounds are drawn again, a bootstrap: both programs in the same ones.
        """
        ours, theirs = self.seconds[name], self.seconds[over]
        drawn = np.random.default_rng(0).integers(len(ours), size=(2000, len(ours)))
        ratios = np.median(theirs[drawn], axis=1) / np.median(ours[drawn], axis=1)
        low, high = np.quantile(ratios, [0.025, 0.975])
        return self.median(over) / self.median(name), float(low), float(high)


def race(
    programs: Mapping[str, Callable[[], Any]],
    budget_s: float,
    progress: Callable[[str], None] = lambda text: None,
) -> Race:
    """Times programs that are compiled already.

    Args:
      programs: by name; each returns arrays, which are waited for.
      budget_s: seconds for all rounds, of which there are at least `LEAST_ROUNDS`.
      progress: is told how far it is.

    Example:
      >>> import time
      >>> slow, fast = lambda: time.sleep(4e-3), lambda: time.sleep(2e-3)
      >>> race({"slow": slow, "fast": fast}, 0.1).speedup("fast", "slow")[0] > 1.5
      True
    """
    repeats = {name: _repeats(call) for name, call in programs.items()}
    rounds: dict[str, list[float]] = {name: [] for name in programs}
    order, start = list(programs), time.perf_counter()
    for k in range(MOST_ROUNDS):
        spent = time.perf_counter() - start
        if k >= LEAST_ROUNDS and spent > budget_s:
            break
        progress(f"races, {spent:.0f} of {budget_s:.0f} s")
        for name in order[k % len(order) :] + order[: k % len(order)]:
            rounds[name].append(_sample(programs[name], repeats[name]))
    return Race({name: np.array(seconds) for name, seconds in rounds.items()})


def _repeats(call: Callable[[], Any]) -> int:
    jax.block_until_ready(call())
    return max(1, math.ceil(SAMPLE_SECONDS / max(_sample(call, 1), 1e-7)))


def _sample(call: Callable[[], Any], repeats: int) -> float:
    jax.block_until_ready(call())  # with its own data in the caches, not those of another
    start = time.perf_counter()
    for _ in range(repeats):
        jax.block_until_ready(call())
    return (time.perf_counter() - start) / repeats
