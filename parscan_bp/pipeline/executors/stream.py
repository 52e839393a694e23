"""A schedule for as many batches as will come: what is done when one more enters."""

from __future__ import annotations

import dataclasses
import itertools

from parscan_bp.pipeline.schedules import Schedule, Task
from parscan_bp.pipeline.schedules.table import Due, due_of


class Stream:
    """The tick table of a schedule, step by step.

    Step n begins when batch n enters block 0, and ends before the next one does. Once the pipeline
    is full, all steps are alike: a batch, a version and some ticks later. So a short table says
    what is done in all of them.

    Args:
      schedule: the schedule.
      blocks: K.

    Attributes:
      ahead: batches that enter before block 0 has its first gradient.

    Raises:
      ValueError: if the schedule is for another number of blocks.

    Example:
      >>> import parscan_bp as pb
      >>> from parscan_bp.pipeline.executors.stream import Stream
      >>> stream = Stream(pb.pipeline.DSP((1, 1, 0), (4, 2, 0)), blocks=3)
      >>> print(*(task for task, _ in stream.step(1000) if task.block == 0))
      F1000@996 B996@996 U996@996
      >>> print(*(task for task, _ in stream.rest(1001) if task.block == 0))
      B997@997 U997@997 B998@998 U998@998 B999@999 U999@999 B1000@1000 U1000@1000
    """

    def __init__(self, schedule: Schedule, blocks: int):
        self._schedule, self._blocks = schedule, blocks
        self.ahead = schedule.on_the_way(blocks)
        # Weights are late by up to `ahead` updates, and passes by as many batches.
        self._full = 2 * self.ahead + 1
        table = schedule.table(blocks, 3 * self.ahead + 4)
        starts = [at for at, task in enumerate(table.tasks) if _enters(task)][: self._full + 2]
        due = due_of(table.tasks)
        self._steps = [due[a:b] for a, b in itertools.pairwise(starts)]
        first, second = (table.tasks[at].tick for at in starts[-2:])
        self._period = second - first

    def step(self, number: int) -> list[Due]:
        """What is done from when batch ``number`` enters."""
        late = max(0, number - self._full)
        return [self._later(each, late) for each in self._steps[number - late]]

    def rest(self, entered: int) -> list[Due]:
        """What is left when so many batches have entered, and no more come."""
        late = max(0, entered - self._full - 1)
        entered -= late
        done = [task for number in range(entered) for task, _ in self.step(number)]
        already = set(map(_what, done))
        rest = [
            task
            for task in self._schedule.tasks(self._blocks, entered)
            if _what(task) not in already
        ]
        due = due_of((*done, *rest))[len(done) :]
        return [self._later(each, late) for each in due]

    def _later(self, due: Due, batches: int) -> Due:
        if not batches:
            return due
        task, unread = due
        moved = dataclasses.replace(
            task,
            tick=task.tick + batches * self._period,
            batch=task.batch + batches,
            version=task.version + batches,
        )
        return moved, tuple(version + batches for version in unread)


def _enters(task: Task) -> bool:
    return task.kind == "forward" and task.block == 0 and task.part == 0


def _what(task: Task) -> tuple[str, int, int, int]:
    return task.kind, task.block, task.batch, task.part
