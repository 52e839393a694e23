"""PipeDream-2BW: two versions of the weights, every gradient one update late."""

from __future__ import annotations

import dataclasses
from typing import final

from parscan_bp.pipeline.schedules.base import InMicrobatches
from parscan_bp.pipeline.schedules.orders import clocked, one_forward_one_backward
from parscan_bp.pipeline.schedules.task import Task


@final
@dataclasses.dataclass(frozen=True)
class PipeDream2BW(InMicrobatches):
    """1F1B over the micro-batches of all batches without a flush, with double-buffered weights.

        w(n + 1) = w(n) - rate * d f(w(n - 1)) / d w

    for all blocks alike: what `stale` does with delay 1. A batch takes max_k (F_k + B_k).

    Args:
      microbatches: M, of a batch; at least K, so that two versions are enough.

    Raises:
      TypeError, ValueError: if ``microbatches`` is no positive integer; by `table`, if there are
        fewer than blocks.

    Source: Narayanan et al., Memory-Efficient Pipeline-Parallel DNN Training (ICML 2021), section
    3.1.

    Example:
      >>> import parscan_bp as pb
      >>> [held.weights for held in pb.pipeline.PipeDream2BW(4).held(blocks=4)]
      [2, 2, 2, 2]
    """

    def tasks(self, blocks: int, batches: int) -> list[Task]:
        passes = [(n, part) for n in range(batches) for part in range(self.parts)]
        orders = [one_forward_one_backward(k, blocks, passes, flush=False) for k in range(blocks)]
        return clocked(orders, lambda block, batch: max(0, batch - 1))

    def on_the_way(self, blocks: int) -> int:
        return 1

    def check_blocks(self, blocks: int) -> None:
        if self.microbatches < blocks:
            raise ValueError(
                f"microbatches: got {self.microbatches} for {blocks} blocks; at least {blocks} are "
                "wanted, or two versions of the weights are not enough"
            )
