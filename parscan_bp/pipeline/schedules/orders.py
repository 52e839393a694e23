"""Ticks for the order in which each block does its passes: one pass a tick."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from parscan_bp.pipeline.schedules.task import Task, TaskKind


class NextTask(NamedTuple):
    """What a device does next; of several blocks, with block ``round D + d`` of device d of D."""

    kind: TaskKind
    batch: int
    part: int = 0
    round: int = 0


def clocked(
    orders: Sequence[Sequence[NextTask]], version: Callable[[int, int], int], rounds: int = 1
) -> list[Task]:
    """The tasks, each pass in the first tick that its device is free and its operands are there.

    An update takes no tick of its own: it follows the pass before it.

    Args:
      orders: for each device its steps, in its order.
      version: (block, batch) to the version of the weights of both passes.
      rounds: blocks of each device.

    Raises:
      ValueError: if the orders wait for each other for ever.
    """
    tasks: list[Task] = []
    finished: set[tuple[TaskKind, int, int, int]] = set()
    devices, blocks = len(orders), rounds * len(orders)
    position = [0] * devices
    updates = [0] * blocks
    tick = 0
    while any(at < len(order) for at, order in zip(position, orders, strict=True)):
        ready = [
            d
            for d, order in enumerate(orders)
            if position[d] < len(order)
            and _ready(order[position[d]].round * devices + d, order[position[d]], finished, blocks)
        ]
        if not ready:
            stuck = [order[at] for at, order in zip(position, orders, strict=True) if order[at:]]
            raise ValueError(f"orders: none of {stuck} can run; they wait for each other")
        made: list[Task] = []
        for d in ready:
            step = orders[d][position[d]]
            k = step.round * devices + d
            made.append(Task(step.kind, tick, k, step.batch, step.part, version(k, step.batch)))
            position[d] += 1
            while position[d] < len(orders[d]) and orders[d][position[d]].kind == "update":
                step = orders[d][position[d]]
                k = step.round * devices + d
                made.append(Task("update", tick, k, step.batch, version=updates[k]))
                updates[k] += 1
                position[d] += 1
        # What was made in a tick is read in the next one.
        tasks += made
        finished |= {(t.kind, t.block, t.batch, t.part) for t in made}
        tick += 1
    return tasks


def _ready(k: int, step: NextTask, finished: set, blocks: int) -> bool:
    """Whether the neighbour has made what the step reads; the block's order sees to the rest."""
    if step.kind == "forward":
        return k == 0 or ("forward", k - 1, step.batch, step.part) in finished
    if k == blocks - 1:
        return True
    above = (k + 1, step.batch, step.part)
    return ("backward", *above) in finished or ("input_gradient", *above) in finished


def one_forward_one_backward(
    block: int, blocks: int, passes: Sequence[tuple[int, int]], *, flush: bool
) -> list[NextTask]:
    """The 1F1B order of a block: K - 1 - k forward passes, then one of each in turn.

    Args:
      block: k.
      blocks: K.
      passes: the (batch, part) that come in, in their order.
      flush: whether a block begins with a batch only when the one before it is done.

    Source: Narayanan et al., PipeDream (SOSP 2019), section 3.2.
    """
    if flush:
        batches = sorted({batch for batch, _ in passes})
        split = [[each for each in passes if each[0] == batch] for batch in batches]
        return [
            step
            for own in split
            for step in one_forward_one_backward(block, blocks, own, flush=False)
        ]
    ahead = min(blocks - 1 - block, len(passes))
    last = dict(passes)
    steps = [NextTask("forward", *each) for each in passes[:ahead]]
    for at, (batch, part) in enumerate(passes):
        if at + ahead < len(passes):
            steps.append(NextTask("forward", *passes[at + ahead]))
        steps.append(NextTask("backward", batch, part))
        if part == last[batch]:
            steps.append(NextTask("update", batch))
    return steps
