"""A schedule whose blocks are all updated in one step, at the end of every batch."""

from __future__ import annotations

import collections
import dataclasses
from typing import ClassVar, final

from parscan_bp.pipeline.schedules.base import Schedule
from parscan_bp.pipeline.schedules.task import Task


@final
@dataclasses.dataclass(frozen=True)
class Together(Schedule):
    """Another schedule, for an optimiser that wants the gradients of all blocks at once.

    A batch enters when the one before has updated all blocks. The passes of a batch are those of
    the other schedule, in its order; then come all updates, in one tick.

    Args:
      inner: the schedule, of which no pass is stale.

    Example:
      >>> import parscan_bp as pb
      >>> from parscan_bp.pipeline.schedules.together import Together
      >>> print(Together(pb.pipeline.ZeroBubble(2)).table(blocks=2, batches=1))
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

    together: ClassVar[bool] = True

    inner: Schedule

    @property
    def blocks(self) -> int | None:
        return self.inner.blocks

    @property
    def parts(self) -> int:
        return self.inner.parts

    def tasks(self, blocks: int, batches: int) -> list[Task]:
        of = collections.defaultdict(list)
        for task in self.inner.tasks(blocks, batches):
            of[task.batch].append(task)
        tasks: list[Task] = []
        free = 0
        for n in range(batches):
            later = max(0, free - of[n][0].tick)
            end = of[n][-1].tick + later
            moved = [dataclasses.replace(task, tick=task.tick + later) for task in of[n]]
            updates = [dataclasses.replace(t, tick=end) for t in moved if t.kind == "update"]
            tasks += [task for task in moved if task.kind != "update"]
            tasks += sorted(updates, key=lambda task: task.block)
            free = end + 1
        return tasks

    def keeps(self, blocks: int) -> tuple[bool, ...]:
        return self.inner.keeps(blocks)

    def devices_for(self, blocks: int) -> int:
        return self.inner.devices_for(blocks)

    def on_the_way(self, blocks: int) -> int:
        return self.inner.on_the_way(blocks)

    def check_blocks(self, blocks: int) -> None:
        self.inner.check_blocks(blocks)

    def __str__(self) -> str:
        return str(self.inner)
