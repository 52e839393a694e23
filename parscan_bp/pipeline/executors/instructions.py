"""A tick table as arrays: what each block does in each tick, and where its operands lie."""

from __future__ import annotations

import collections
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from parscan_bp.pipeline.executors.slots import allocate
from parscan_bp.pipeline.schedules import Table, Task

NOTHING, BACKWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = range(4)
_BACKWARD = {
    "backward": BACKWARD,
    "input_gradient": INPUT_GRADIENT,
    "weight_gradient": WEIGHT_GRADIENT,
}
# The moments of a tick, in their order: both passes, the update, then what neighbours have sent.
_FORWARD, _BACK, _UPDATE, _ARRIVAL, _MOMENTS = range(5)


class Instructions(NamedTuple):
    """Arrays (ticks, blocks) of integers, traced or not.

    What arrives or is kept where nothing is to goes into a slot after the last.

    Attributes:
      forward: whether there is a forward pass.
      batch, part: of it.
      x: slot of its input among the arrivals from below; of no meaning at block 0.
      kept: slot for what the backward pass will need of it.
      weights: slot of its weights.
      last: whether it is the batch's last part.
      backward: `NOTHING`, `BACKWARD` or one of its halves.
      back_batch, back_part: of that.
      back_kept: slot of what was kept.
      back_weights: slot of its weights.
      ct: slot of its error gradient among the arrivals from above; of no meaning at the last block.
      first: whether its gradient is the batch's first.
      update: whether there is an update.
      old, new: slots of the weights that it reads and makes.
      x_to, ct_to: slots for what neighbours send in this tick.
    """

    forward: Any
    batch: Any
    part: Any
    x: Any
    kept: Any
    weights: Any
    last: Any
    backward: Any
    back_batch: Any
    back_part: Any
    back_kept: Any
    back_weights: Any
    ct: Any
    first: Any
    update: Any
    old: Any
    new: Any
    x_to: Any
    ct_to: Any


class Rooms(NamedTuple):
    """Slots, of each block.

    Attributes:
      x: for inputs that have arrived and wait.
      ct: for error gradients that have.
      kept: for what backward passes need.
      weights: for versions of the weights.
      newest: the slot with the weights at the end.
    """

    x: tuple[int, ...]
    ct: tuple[int, ...]
    kept: tuple[int, ...]
    weights: tuple[int, ...]
    newest: tuple[int, ...]


def instructions(table: Table) -> tuple[Instructions, Rooms]:
    """What every block does in every tick if what it sends arrives at the tick's end.

    Raises:
      NotImplementedError: if the table needs more than one hop, or more than one pass of a kind at
        a block, in a tick; names it.
    """
    check_hops(table)
    of: list[list[Task]] = [[] for _ in range(table.blocks)]
    for task in table.tasks:
        of[task.block].append(task)
    made = [
        _column(table, k, own, of[k - 1] if k else [], of[k + 1] if k + 1 < table.blocks else [])
        for k, own in enumerate(of)
    ]
    fields = {
        name: np.stack([column[name] for column, _ in made], axis=1)
        for name in Instructions._fields
    }
    return Instructions(**fields), Rooms(*zip(*(rooms for _, rooms in made), strict=True))


def check_hops(table: Table) -> None:
    """Raises `NotImplementedError` unless one hop a tick, up and down, is enough for a table."""
    ticks: dict[tuple[str, int, int, int], int] = {}
    count: collections.Counter = collections.Counter()
    for task in table.tasks:
        k, where = task.block, (task.batch, task.part)
        way = "up" if task.kind == "forward" else "down"
        if task.kind == "update":
            way = "update"
        count[way, k, task.tick] += 1
        if count[way, k, task.tick] > 1:
            raise NotImplementedError(
                f"schedule: {table.name} has several passes of one kind at block {k} in tick "
                f"{task.tick}; with one program for all stages there is one of each"
            )
        if task.kind in ("update", "weight_gradient"):
            continue
        if task.kind == "input_gradient" and not table.keeps[k]:
            raise NotImplementedError(
                f"schedule: {table.name} divides the backward pass of block {k}, which does not "
                "keep its linearisation; with one program for all stages it has to"
            )
        ticks[way, k, *where] = task.tick
        other = k - 1 if way == "up" else k + 1
        if ticks.get((way, other, *where)) == task.tick:
            raise NotImplementedError(
                f"schedule: {table.name} needs several hops in a tick: in tick {task.tick} batch "
                f"{task.batch} goes {way} through blocks {other} and {k}; with one program for all "
                "stages one hop takes a tick (DSP with p, q >= 1, GPipe, 1F1B, ...). "
                "executor=Threads() runs it"
            )


MicroBatch = tuple[int, int]


def _column(
    table: Table, k: int, own: list[Task], below: list[Task], above: list[Task]
) -> tuple[dict[str, np.ndarray], tuple[int, ...]]:
    """The instructions of one block, whose neighbours have tasks of their own, and its rooms."""
    up = [task for task in own if task.kind == "forward"]
    down = [task for task in own if task.kind in _BACKWARD]
    steps = [task for task in own if task.kind == "update"]
    from_below = {_part(t): t.tick for t in below if t.kind == "forward"}
    from_above = {_part(t): t.tick for t in above if t.kind in ("backward", "input_gradient")}
    arrives = lambda ticks: {n: _moment(t, _ARRIVAL) for n, t in ticks.items()}  # noqa: E731
    x, rooms_x = allocate(_lives(arrives(from_below), _reads(up)))
    ct, rooms_ct = allocate(_lives(arrives(from_above), _reads(down)))
    writes = {_part(t): _moment(t.tick, _FORWARD) for t in up}
    kept, rooms_kept = allocate(_lives(writes, _reads(down)))
    weights, rooms_weights = allocate(_versions(table, k, own))

    fields = {name: np.zeros(table.ticks, np.int32) for name in Instructions._fields}

    def fill(tick: int, **values: int) -> None:
        for name, value in values.items():
            fields[name][tick] = value

    for name, rooms in (("x_to", rooms_x), ("ct_to", rooms_ct), ("kept", rooms_kept)):
        fields[name][:] = rooms
    for task in up:
        n, i = _part(task)
        fill(task.tick, forward=1, batch=n, part=i, last=i == table.parts - 1)
        fill(task.tick, x=x.get((n, i), 0), kept=kept[n, i], weights=weights[task.version])
    begun: set[int] = set()
    for task in down:
        n, i = _part(task)
        fill(task.tick, backward=_BACKWARD[task.kind], back_batch=n, back_part=i)
        fill(task.tick, back_kept=kept[n, i], ct=ct.get((n, i), 0))
        if not table.keeps[k]:
            fill(task.tick, back_weights=weights[task.version])
        if task.kind != "input_gradient":
            fill(task.tick, first=n not in begun)
            begun.add(n)
    for task in steps:
        old, new = weights[task.version], weights[task.version + 1]
        fill(task.tick, update=1, old=old, new=new)
    for name, ticks, slots in (("x_to", from_below, x), ("ct_to", from_above, ct)):
        for value, tick in ticks.items():
            fill(tick, **{name: slots[value]})
    return fields, (rooms_x, rooms_ct, rooms_kept, rooms_weights, weights[table.batches])


def _part(task: Task) -> MicroBatch:
    return task.batch, task.part


def _moment(tick: int, which: int) -> int:
    return tick * _MOMENTS + which


def _reads(tasks: Iterable[Task]) -> list[tuple[MicroBatch, int]]:
    which = lambda task: _FORWARD if task.kind == "forward" else _BACK  # noqa: E731
    return [(_part(task), _moment(task.tick, which(task))) for task in tasks]


def _lives(
    writes: Mapping[Any, int], reads: Iterable[tuple[Any, int]]
) -> dict[Hashable, tuple[int, int]]:
    """From the write to the last read."""
    last = dict(writes)
    for value, moment in reads:
        if value in last:
            last[value] = max(last[value], moment)
    return {value: (moment, last[value]) for value, moment in writes.items()}


def _versions(table: Table, k: int, own: list[Task]) -> dict[Hashable, tuple[int, int]]:
    """When each version of the weights of block k is made, and last read.

    The backward pass of a block that keeps its linearisation reads none.
    """
    end = _moment(table.ticks, 0)
    writes: dict[Hashable, int] = {0: -1}
    reads: list[tuple[Hashable, int]] = [(table.batches, end)]
    for task in own:
        if task.kind == "update":
            moment = _moment(task.tick, _UPDATE)
            writes[task.version + 1] = moment
            reads.append((task.version, moment))
        elif task.kind == "forward":
            reads.append((task.version, _moment(task.tick, _FORWARD)))
        elif not table.keeps[k]:
            reads.append((task.version, _moment(task.tick, _BACK)))
    return _lives(writes, reads)
