"""Devices that are slow now and then, and how much of it a pipeline feels."""

from __future__ import annotations

import dataclasses

import numpy as np

from parscan_bp.arguments import as_int, check_finite, check_kind, check_number
from parscan_bp.pipeline.schedules import Schedule
from parscan_bp.pipeline.timeline import Costs, check_busy, time_per_batch


@dataclasses.dataclass(frozen=True)
class Stragglers:
    """Each block is slow by itself, in a tick with probability rho, by a factor 1 + s.

    Args:
      slow_down: s, at least 0; 0.5 is 50 %.
      probability: rho, in [0, 1].
      seed: of the random numbers, the same for every schedule.

    Raises:
      TypeError, ValueError: if one is no such number.

    Source: DSP (Xu, Huo, Huang), section 5.2. Its rho is lost in the text that we have. Of blocks
    that never wait for each other a batch takes 1 + rho s times as long, which the longest queues
    of its Table 2 come near to with rho = 1/3.

    Example:
      >>> import parscan_bp as pb
      >>> pb.pipeline.Stragglers(0.5, probability=1.0).factors(ticks=2, blocks=2).tolist()
      [[1.5, 1.5], [1.5, 1.5]]
    """

    slow_down: float
    probability: float = 1 / 3
    seed: int = 0

    def __post_init__(self):
        check_finite("slow_down", self.slow_down)
        check_number("probability", self.probability)
        if self.probability > 1:
            raise ValueError(f"probability: got {self.probability}; at most 1 is wanted")
        as_int("seed", self.seed, least=0)

    def factors(self, ticks: int, blocks: int) -> np.ndarray:
        """d_k(n), (ticks, blocks): 1 or 1 + s."""
        hit = np.random.default_rng(self.seed).random((ticks, blocks)) < self.probability
        return 1 + self.slow_down * hit


def straggler_slow_down(
    schedule: Schedule,
    blocks: int,
    stragglers: Stragglers,
    costs: Costs | None = None,
    *,
    batches: int = 2000,
) -> float:
    """By how much longer a batch takes with stragglers than without: 0.5 is 50 %.

    It is at most s, as no task takes more than 1 + s times as long. So the 97 % and 359 % that DSP
    reports for Features Replay at s = 100 % and 150 % do not come from slow computation alone.

    Args:
      schedule: the schedule.
      blocks: K.
      stragglers: how often, and by how much, a block is slow.
      costs: as in `timeline`.
      batches: over which it is averaged.

    Raises:
      TypeError, ValueError: if an argument is none such; if nothing takes any time.

    Source: DSP, Table 2.

    Example:
      >>> import parscan_bp as pb
      >>> schedule = pb.pipeline.FeaturesReplay()
      >>> always = pb.pipeline.Stragglers(0.5, probability=1.0)
      >>> pb.pipeline.straggler_slow_down(schedule, 3, always, batches=20)
      0.5
    """
    check_kind("schedule", schedule, Schedule)
    check_kind("stragglers", stragglers, Stragglers)
    check_busy(costs)
    batches = as_int("batches", batches, least=2)
    table = schedule.table(blocks, batches + 2 * schedule.on_the_way(blocks))
    slow = stragglers.factors(table.ticks, blocks)
    plain = time_per_batch(schedule, blocks, costs, batches=batches)
    return time_per_batch(schedule, blocks, costs, batches=batches, slow=slow) / plain - 1
