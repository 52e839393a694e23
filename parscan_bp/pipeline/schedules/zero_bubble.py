"""Zero bubble: the weight gradients fill the gaps that 1F1B leaves."""

from __future__ import annotations

import dataclasses
from typing import final

from parscan_bp.arguments import set_ints
from parscan_bp.pipeline.schedules.base import InMicrobatches
from parscan_bp.pipeline.schedules.orders import NextTask, clocked
from parscan_bp.pipeline.schedules.task import Task


@final
@dataclasses.dataclass(frozen=True)
class ZeroBubble(InMicrobatches):
    """Backward passes in two halves: the block below waits for the input's gradient only.

    Block k is a (K - 1 - k) forward passes ahead, a the ``lookahead``, then does one forward pass
    and one input's gradient in turn, and after each the weights' gradient of a k micro-batches
    before; those that remain come last. No pass is stale, and a (K - 1) + 1 linearisations are
    stored.

    With a = 1 (ZB-H1) the first block is idle for K - 1 of the 3 M + K - 1 thirds that a batch
    takes where F = I = W, against 3 (K - 1) with `OneFOneB`; with a = 2 (ZB-H2) it is never idle.

    Args:
      microbatches: M, of a batch.
      lookahead: a.

    Raises:
      TypeError, ValueError: if one is no positive integer.

    Source: Qi, Wan, Huang, Lin, Zero Bubble Pipeline Parallelism (ICLR 2024), section 2.

    Example:
      >>> import parscan_bp as pb
      >>> print(pb.pipeline.ZeroBubble(microbatches=2).table(blocks=2, batches=1))
      ZeroBubble(microbatches=2): 2 blocks, 1 batches, 2 parts each
      tick  block 0      block 1
         0  F0@0
         1  F0.1@0       F0@0
         2               I0@0
         3  I0@0         F0.1@0
         4  W0@0         I0.1@0
         5  I0.1@0       W0@0
         6  W0.1@0 U0@0  W0.1@0 U0@0
    """

    lookahead: int = 1

    def __post_init__(self):
        super().__post_init__()
        set_ints(self, lookahead=1)

    def tasks(self, blocks: int, batches: int) -> list[Task]:
        orders = [
            [step for n in range(batches) for step in self._order(k, blocks, n)]
            for k in range(blocks)
        ]
        return clocked(orders, lambda block, batch: batch)

    def _order(self, block: int, blocks: int, batch: int) -> list[NextTask]:
        """What a block does with one batch."""
        parts = self.microbatches
        ahead, owed = self.lookahead * (blocks - 1 - block), self.lookahead * block
        steps = [NextTask("forward", batch, part) for part in range(min(ahead, parts))]
        for part in range(parts):
            if part + ahead < parts:
                steps.append(NextTask("forward", batch, part + ahead))
            steps.append(NextTask("input_gradient", batch, part))
            if part >= owed:
                steps.append(NextTask("weight_gradient", batch, part - owed))
        left = range(max(0, parts - owed), parts)
        steps += [NextTask("weight_gradient", batch, part) for part in left]
        return [*steps, NextTask("update", batch)]
