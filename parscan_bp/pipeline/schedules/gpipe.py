"""GPipe: micro-batches, one update a batch."""

from __future__ import annotations

import dataclasses
from typing import final

from parscan_bp.arguments import check_bool
from parscan_bp.pipeline.schedules.base import InMicrobatches
from parscan_bp.pipeline.schedules.orders import NextTask, clocked
from parscan_bp.pipeline.schedules.task import Task


@final
@dataclasses.dataclass(frozen=True)
class GPipe(InMicrobatches):
    """All M micro-batches of a batch go up, then all come down, then every block is updated.

    No pass is stale. Of K equal blocks a batch takes F + R + B + (K - 1) / M (F + B), where the
    time R to linearise again is none with ``recompute=False``; then the share (K - 1) / (M + K - 1)
    of it is idle. A block linearises again while it waits for the first error gradient.

    Args:
      microbatches: M, of a batch.
      recompute: whether a block stores its inputs and linearises itself again (R), or stores its
        linearisations.

    Raises:
      TypeError, ValueError: if ``microbatches`` is no positive integer.

    Source: Huang et al., GPipe (NeurIPS 2019), section 2.3.

    Example:
      >>> import parscan_bp as pb
      >>> pb.pipeline.GPipe(8).held(blocks=4)[0].inputs
      8
    """

    recompute: bool = True

    def __post_init__(self):
        super().__post_init__()
        check_bool("recompute", self.recompute)

    def tasks(self, blocks: int, batches: int) -> list[Task]:
        order = []
        for n in range(batches):
            order += [NextTask("forward", n, part) for part in range(self.parts)]
            order += [NextTask("backward", n, part) for part in range(self.parts)]
            order.append(NextTask("update", n))
        return clocked([order] * blocks, lambda block, batch: batch)

    def keeps(self, blocks: int) -> tuple[bool, ...]:
        return (not self.recompute,) * blocks
