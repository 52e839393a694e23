"""Back-propagation over several devices: one batch at a time."""

from __future__ import annotations

import dataclasses
from typing import final

from parscan_bp.pipeline.schedules.base import Schedule
from parscan_bp.pipeline.schedules.orders import NextTask, clocked
from parscan_bp.pipeline.schedules.task import Task


@final
@dataclasses.dataclass(frozen=True)
class BackPropagation(Schedule):
    """Every batch goes up and down through all blocks before the next one enters (BP-K).

    No pass is stale. With F_k and B_k the times of the passes and c that of a transfer, a batch
    takes sum_k (F_k + B_k) + 2 (K - 1) c, and K - 1 of K blocks are idle at any time.

    Source: DSP (Xu, Huo, Huang), eq. 2 and section 2.

    Example:
      >>> import parscan_bp as pb
      >>> [s.backward for s in pb.pipeline.BackPropagation().staleness(blocks=3)]
      [0, 0, 0]
    """

    def tasks(self, blocks: int, batches: int) -> list[Task]:
        kinds = ("forward", "backward", "update")
        order = [NextTask(kind, n) for n in range(batches) for kind in kinds]  # type: ignore[arg-type]
        return clocked([order] * blocks, lambda block, batch: batch)
