"""A tick table: all tasks of a pipeline, in an order in which they can run."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from parscan_bp.pipeline.schedules.check import check_tasks
from parscan_bp.pipeline.schedules.task import Task

PRINTED = 60
"""Ticks that are printed."""


class Staleness(NamedTuple):
    """How many updates of a block lie between the weights of a pass and those it updates."""

    forward: int
    backward: int


class Held(NamedTuple):
    """The most that a block holds at once, in arrays of one part of a batch each.

    Attributes:
      inputs: kept to linearise the block again when the error gradient comes (M_k of DSP).
      linearisations: kept instead, with all that the backward pass reads.
      outputs: made, and not read by the block above yet (P_k).
      gradients: error gradients made, and not used up by the block below yet (Q_k).
      weights: versions of the block's weights.
    """

    inputs: int
    linearisations: int
    outputs: int
    gradients: int
    weights: int


@dataclasses.dataclass(frozen=True)
class Table:
    """Who does what when, on which batch, with which weight version: enough to run from.

    Whoever runs the tasks of each block in this order, and waits for what a task needs from its
    neighbours, computes what `Simulated` does.

    Attributes:
      name: of the schedule.
      blocks: K.
      batches: N.
      parts: micro-batches of a batch.
      keeps: for each block whether its linearisation is kept from the forward to the backward
        pass; else its input is, and it is linearised again with the weights that the backward
        pass names.
      tasks: in an order in which each comes after what it needs.
      lockstep: whether the blocks wait for each other at the end of every tick.
      devices: for how many the order is made, block k on device k mod D; ``None`` is one for each.
      together: whether the updates of a batch are one step of the optimiser: block 0 does it, its
        update coming first, and hands the others their new weights.

    Raises:
      ValueError: if a task comes before what it needs, is missing or there twice, or names a
        version of weights that does not exist.

    Example:
      >>> import parscan_bp as pb
      >>> print(pb.pipeline.FeaturesReplay().table(blocks=2, batches=3))
      FeaturesReplay: 2 blocks, 3 batches
      tick  block 0    block 1
         0  F0@0       F0@0
         1             B0@0 U0@0
         2  F1@0       F1@1
         3  B0@0 U0@0  B1@1 U1@1
         4  F2@1       F2@2
         5  B1@1 U1@1  B2@2 U2@2
         6
         7  B2@2 U2@2
    """

    name: str
    blocks: int
    batches: int
    parts: int
    keeps: tuple[bool, ...]
    tasks: tuple[Task, ...]
    lockstep: bool = False
    devices: int | None = None
    together: bool = False

    def __post_init__(self):
        if len(self.keeps) != self.blocks:
            raise ValueError(f"keeps: got {len(self.keeps)} bools; {self.blocks} are wanted")
        check_tasks(self.tasks, self.keeps, self.batches, self.parts)

    @property
    def ticks(self) -> int:
        """How many ticks there are."""
        return 1 + max(task.tick for task in self.tasks)

    def staleness(self) -> tuple[Staleness, ...]:
        """Of each block, the most that occurs."""
        starts = {(t.block, t.batch): t.version for t in self.tasks if t.kind == "update"}
        most = [[0, 0] for _ in range(self.blocks)]
        for task in self.tasks:
            if task.kind != "update":
                late = starts[task.block, task.batch] - task.version
                column = task.kind != "forward"
                most[task.block][column] = max(most[task.block][column], late)
        return tuple(Staleness(*pair) for pair in most)

    def held(self) -> tuple[Held, ...]:
        """The most that each block holds at once, by running through the tasks."""
        now = {name: [0] * self.blocks for name in Held._fields}
        most = {name: [0] * self.blocks for name in Held._fields}

        def add(name: str, block: int, count: int) -> None:
            now[name][block] += count
            most[name][block] = max(most[name][block], now[name][block])

        for k in range(self.blocks):
            add("weights", k, 1)
        for task, unread in due_of(self.tasks):
            k = task.block
            kept = "linearisations" if self.keeps[k] else "inputs"
            if task.kind == "forward":
                add(kept, k, 1)
                if k < self.blocks - 1:
                    add("outputs", k, 1)
                if k > 0:
                    add("outputs", k - 1, -1)
            if task.kind in ("backward", "input_gradient") and k > 0:
                add("gradients", k, 1)
            if task.kind in ("backward", "weight_gradient"):
                add(kept, k, -1)
                if k < self.blocks - 1:
                    add("gradients", k + 1, -1)
            # An update takes the place of weights that nobody reads any more.
            for _ in unread:
                add("weights", k, -1)
            if task.kind == "update":
                add("weights", k, 1)
        return tuple(Held(*(most[name][k] for name in Held._fields)) for k in range(self.blocks))

    def __str__(self) -> str:
        cells: dict[tuple[int, int], list[str]] = collections.defaultdict(list)
        for task in self.tasks:
            cells[task.tick, task.block].append(str(task))
        ticks, blocks = range(min(self.ticks, PRINTED)), range(self.blocks)
        rows = [["tick", *(f"block {k}" for k in blocks)]]
        rows += [[f"{t:4d}", *(" ".join(cells[t, k]) for k in blocks)] for t in ticks]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(entry.ljust(width) for entry, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        parts = f", {self.parts} parts each" if self.parts > 1 else ""
        head = f"{self.name}: {self.blocks} blocks, {self.batches} batches{parts}"
        more = [f"... and {self.ticks - PRINTED} ticks more"] if self.ticks > PRINTED else []
        return "\n".join([head, *lines, *more])


Due = tuple[Task, tuple[int, ...]]
"""A task, and the versions of its block's weights that nobody reads after it."""


def due_of(tasks: Sequence[Task]) -> list[Due]:
    """All tasks in their order; the newest version, which is the result, is always kept."""
    last = {(task.block, task.version): at for at, task in enumerate(tasks)}
    unread: dict[int, list[int]] = collections.defaultdict(list)
    for (_, version), at in last.items():
        unread[at].append(version)
    return [(task, tuple(unread.get(at, ()))) for at, task in enumerate(tasks)]
