"""1F1B: the micro-batches of GPipe, backward as early as possible."""

from __future__ import annotations

import dataclasses
from typing import final

from parscan_bp.pipeline.schedules.base import InMicrobatches
from parscan_bp.pipeline.schedules.orders import clocked, one_forward_one_backward
from parscan_bp.pipeline.schedules.task import Task


@final
@dataclasses.dataclass(frozen=True)
class OneFOneB(InMicrobatches):
    """One forward, one backward: block k is K - 1 - k micro-batches ahead, not all of them.

    No pass is stale, and the time is that of `GPipe` without recomputation; but block k stores
    what min(M, K - k) micro-batches need, and not that of all M.

    Args:
      microbatches: M, of a batch.

    Raises:
      TypeError, ValueError: if ``microbatches`` is no positive integer.

    Source: Narayanan et al., Memory-Efficient Pipeline-Parallel DNN Training (ICML 2021), section
    2.2 (PipeDream-Flush).

    Example:
      >>> import parscan_bp as pb
      >>> [held.linearisations for held in pb.pipeline.OneFOneB(8).held(blocks=4)]
      [4, 3, 2, 1]
    """

    def tasks(self, blocks: int, batches: int) -> list[Task]:
        passes = [(n, part) for n in range(batches) for part in range(self.parts)]
        orders = [one_forward_one_backward(k, blocks, passes, flush=True) for k in range(blocks)]
        return clocked(orders, lambda block, batch: batch)
