"""Features Replay: stored inputs, linearised again with the newest weights."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, final

from parscan_bp.pipeline.schedules.base import Schedule
from parscan_bp.pipeline.schedules.queued import queued
from parscan_bp.pipeline.schedules.task import Task


@final
@dataclasses.dataclass(frozen=True)
class FeaturesReplay(Schedule):
    """In one tick a batch goes up through all blocks, in the next all go backward at once.

    Block k replays the batch of K - 1 - k steps ago, whose error gradient the block above made in
    the step before, with its newest weights: what `DSP` does with p = 0 and q_{k+1} = 1, hence
    m_k = K - 1 - k. The blocks wait for each other between ticks; a batch takes
    sum_k F_k + (K - 1) c + max_k (R_k + B_k).

    Source: Huo, Gu, Huang, Training Neural Networks Using Features Replay (NeurIPS 2018),
    Algorithm 1.

    Example:
      >>> import parscan_bp as pb
      >>> pb.pipeline.FeaturesReplay().staleness(blocks=3)[0]
      Staleness(forward=2, backward=0)
    """

    lockstep: ClassVar[bool] = True

    def tasks(self, blocks: int, batches: int) -> list[Task]:
        return queued((0,) * blocks, tuple(range(blocks))[::-1], batches, phases=2)

    def keeps(self, blocks: int) -> tuple[bool, ...]:
        return (False,) * (blocks - 1) + (True,)

    def on_the_way(self, blocks: int) -> int:
        return blocks - 1
