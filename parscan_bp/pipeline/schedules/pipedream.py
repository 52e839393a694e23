"""PipeDream: 1F1B over whole batches, an update after each, with weight stashing."""

from __future__ import annotations

import dataclasses
from typing import final

from parscan_bp.pipeline.schedules.base import Schedule
from parscan_bp.pipeline.schedules.orders import clocked, one_forward_one_backward
from parscan_bp.pipeline.schedules.task import Task


@final
@dataclasses.dataclass(frozen=True)
class PipeDream(Schedule):
    """Batch after batch without a flush; each backward pass reads the weights of its forward one.

        w_k(n + 1) = w_k(n) - rate * d f(w_0(n - K + 1), ..., w_{K-1}(n)) / d w_k

    so that the gradient of block k is K - 1 - k updates late, and the block stores K - k versions
    of its weights. The weights move as with `stale` and these delays. A batch takes
    max_k (F_k + B_k).

    Source: Narayanan et al., PipeDream (SOSP 2019), sections 3.2 and 3.3.

    Example:
      >>> import parscan_bp as pb
      >>> [held.weights for held in pb.pipeline.PipeDream().held(blocks=3)]
      [3, 2, 1]
    """

    def tasks(self, blocks: int, batches: int) -> list[Task]:
        passes = [(n, 0) for n in range(batches)]
        orders = [one_forward_one_backward(k, blocks, passes, flush=False) for k in range(blocks)]
        return clocked(orders, lambda block, batch: max(0, batch - (blocks - 1 - block)))

    def on_the_way(self, blocks: int) -> int:
        return blocks - 1
