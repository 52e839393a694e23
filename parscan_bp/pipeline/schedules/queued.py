"""Steps in which every block does both passes, each of the batch that its queues hand out."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from parscan_bp.pipeline.schedules.task import Task


def queued(
    forward_delays: Sequence[int],
    staleness: Sequence[int],
    batches: int,
    *,
    stashed: bool = False,
    phases: int = 1,
) -> list[Task]:
    """The tasks of blocks between queues.

    Block k sees batch n first in step t_k + n with t_k = p_0 + ... + p_{k-1}, and its error
    gradient m_k steps later. In a step all forward passes come first, from below, then all
    backward passes, from above, then all updates; all of them read the weights of its beginning.

    Args:
      forward_delays: p_k of each block.
      staleness: m_k of each block.
      batches: N.
      stashed: whether the backward pass reads the weights of the forward pass, not the newest.
      phases: ticks of a step; with 2 the backward passes have a tick of their own.
    """
    arrives = list(itertools.accumulate([0, *forward_delays[:-1]]))
    tasks: list[Task] = []
    for step in range(batches + max(t + m for t, m in zip(arrives, staleness, strict=True))):
        first, last = step * phases, step * phases + phases - 1
        for k, t in enumerate(arrives):
            n = step - t
            if 0 <= n < batches:
                version = max(0, n - staleness[k])
                tasks.append(Task("forward", first, k, n, version=version))
        leaving = [(k, step - arrives[k] - m) for k, m in enumerate(staleness)]
        back = [(k, n) for k, n in reversed(leaving) if 0 <= n < batches]
        for k, n in back:
            version = max(0, n - staleness[k]) if stashed else n
            tasks.append(Task("backward", last, k, n, version=version))
        tasks += [Task("update", last, k, n, version=n) for k, n in back]
    return tasks
