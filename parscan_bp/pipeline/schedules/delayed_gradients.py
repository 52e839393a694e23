"""Delayed gradients: stored linearisations, of the weights of the forward pass."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, final

from parscan_bp.pipeline.schedules.base import Schedule
from parscan_bp.pipeline.schedules.queued import queued
from parscan_bp.pipeline.schedules.task import Task


@final
@dataclasses.dataclass(frozen=True)
class DelayedGradients(Schedule):
    """Decoupled parallel back-propagation with delayed gradients (DDG).

    In one tick a batch goes up through all blocks, in the next all go backward at once, block k
    with the batch of K - 1 - k steps ago. Unlike `FeaturesReplay` it stores what that pass reads,
    so that the whole gradient is of the weights that the batch saw: the weights move as with
    `PipeDream`, and as with `stale` and delays K - 1 - k. A batch takes
    sum_k F_k + (K - 1) c + max_k B_k.

    Source: Huo, Gu, Yang, Huang, Decoupled Parallel Backpropagation with Convergence Guarantee
    (ICML 2018), Algorithm 1.

    Example:
      >>> import parscan_bp as pb
      >>> pb.pipeline.DelayedGradients().staleness(blocks=3)[0]
      Staleness(forward=2, backward=2)
    """

    lockstep: ClassVar[bool] = True

    def tasks(self, blocks: int, batches: int) -> list[Task]:
        return queued((0,) * blocks, tuple(range(blocks))[::-1], batches, stashed=True, phases=2)

    def on_the_way(self, blocks: int) -> int:
        return blocks - 1
