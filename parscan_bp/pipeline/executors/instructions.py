"""A tick table as arrays: what each device does in each tick, and where its operands lie."""

from __future__ import annotations

import collections
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from parscan_bp.pipeline.block_run import Where
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
    """Arrays (ticks, devices) of integers, traced or not; of updates (ticks, devices, rounds).

    Of V = K / D blocks a device has one for each round: block ``round D + d``. What arrives where
    nothing is to goes into a slot after the last.

    Attributes:
      forward: whether there is a forward pass.
      round, batch, part: of it.
      x: slot of its input among the arrivals from below; of no meaning at block 0.
      kept: slot for what the backward pass will need of it.
      weights: slot of its weights.
      last: whether it is the batch's last part.
      backward: `NOTHING`, `BACKWARD` or one of its halves.
      back_round, back_batch, back_part: of that.
      back_kept: slot of what was kept.
      back_weights: slot of its weights.
      ct: slot of its error gradient among the arrivals from above; of no meaning at the last block.
      first: whether its gradient is the batch's first.
      update: whether there is an update.
      old, new: slots of the weights that it reads and makes.
      read: slot of those that the batch's forward pass has read, where an update is given them.
      x_to, ct_to: slots for what neighbours send in this tick.
    """

    forward: Any
    round: Any
    batch: Any
    part: Any
    x: Any
    kept: Any
    weights: Any
    last: Any
    backward: Any
    back_round: Any
    back_batch: Any
    back_part: Any
    back_kept: Any
    back_weights: Any
    ct: Any
    first: Any
    update: Any
    old: Any
    new: Any
    read: Any
    x_to: Any
    ct_to: Any


class Rooms(NamedTuple):
    """Slots, of each block; those of a device's blocks are the same ones, but for `newest`.

    Attributes:
      x: for inputs that have arrived and wait.
      ct: for error gradients that have.
      kept: for what backward passes need; blocks of another `Role` have their own.
      weights: for versions of the weights.
      newest: the slot with the weights at the end.
    """

    x: tuple[int, ...]
    ct: tuple[int, ...]
    kept: tuple[int, ...]
    weights: tuple[int, ...]
    newest: tuple[int, ...]


class Role(NamedTuple):
    """A kind of block: the last one has the loss; a linearisation may be kept or made again."""

    is_last: bool
    keeps: bool


def roles_of(table: Table) -> list[Role]:
    """Of each block."""
    return [Role(k == table.blocks - 1, keeps) for k, keeps in enumerate(table.keeps)]


def instructions(table: Table, devices: int, read: bool = False) -> tuple[Instructions, Rooms]:
    """What every device does in every tick if what it sends arrives at the tick's end.

    Args:
      table: the tick table.
      devices: D.
      read: whether an update is given the weights that the batch's forward pass has read, which
        are then kept until it.

    Raises:
      NotImplementedError: if the table needs more than one hop, or more than one pass of a kind at
        a device, in a tick, or what `check_updates` says; names it.
    """
    check_hops(table, devices)
    check_updates(table)
    reads = _forward_versions(table) if read else {}
    made = [_column(table, d, devices, reads) for d in range(devices)]
    fields = {
        name: np.stack([column[name] for column, _ in made], axis=1)
        for name in Instructions._fields
    }
    rooms = [made[k % devices][1][k // devices] for k in range(table.blocks)]
    return Instructions(**fields), Rooms(*zip(*rooms, strict=True))


def check_hops(table: Table, devices: int) -> None:
    """Raises `NotImplementedError` unless one hop a tick, up and down, is enough for a table."""
    ticks: dict[tuple[str, int, int, int], int] = {}
    count: collections.Counter = collections.Counter()
    for task in table.tasks:
        k, where = task.block, (task.batch, task.part)
        way = "up" if task.kind == "forward" else "down"
        at = (way, k % devices) if task.kind != "update" else (task.kind, k)
        count[*at, task.tick] += 1
        if count[*at, task.tick] > 1:
            raise NotImplementedError(
                f"schedule: {table.name} has several passes of one kind on device {k % devices} of "
                f"{devices} in tick {task.tick}; with one program for all stages there is one of "
                "each, as of InterleavedOneFOneB(devices=), or with a device for each block. "
                "executor=Threads() runs it"
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


def check_updates(table: Table) -> None:
    """Raises `NotImplementedError` unless updates come last in a tick, and a block sums up the
    gradient of one batch at a time."""
    made: dict[tuple[int, int], int] = {}
    summed: dict[int, int] = {}
    for task in table.tasks:
        k, n = task.block, task.batch
        if task.kind == "update":
            made[k, task.version + 1] = task.tick
            summed.pop(k, None)
            continue
        if made.get((k, task.version)) == task.tick:
            raise NotImplementedError(
                f"schedule: {table.name} updates block {k} in tick {task.tick} and reads the new "
                "weights in the same one; with one program for all stages updates come last in a "
                "tick. executor=Threads() runs it"
            )
        if task.kind in ("backward", "weight_gradient") and summed.setdefault(k, n) != n:
            raise NotImplementedError(
                f"schedule: {table.name} begins with the gradient of batch {n} at block {k} before "
                f"the update by batch {summed[k]}; with one program for all stages a block has "
                "one gradient at a time. executor=Threads() runs it"
            )


def updates_wait(table: Table) -> bool:
    """Whether a batch's gradient is used later than in the tick in which it is whole."""
    whole = {(t.block, t.batch): t.tick for t in table.tasks if t.kind in _BACKWARD}
    return any(t.tick > whole[t.block, t.batch] for t in table.tasks if t.kind == "update")


def _forward_versions(table: Table) -> dict[tuple[int, int], int]:
    """Of each block and batch which weights the forward pass of its last part reads."""
    return {(t.block, t.batch): t.version for t in table.tasks if t.kind == "forward"}


def _column(
    table: Table, device: int, devices: int, read: Mapping[tuple[int, int], int]
) -> tuple[dict[str, np.ndarray], list[tuple[int, ...]]]:
    """The instructions of one device, and the rooms of each of its blocks."""
    mine = range(device, table.blocks, devices)
    own = [task for task in table.tasks if task.block in mine]
    up = [task for task in own if task.kind == "forward"]
    down = [task for task in own if task.kind in _BACKWARD]
    from_below, from_above = {}, {}
    for task in table.tasks:  # of blocks below and above
        if task.kind == "forward" and task.block + 1 in mine:
            from_below[_where(task, 1)] = task.tick
        if task.kind in ("backward", "input_gradient") and task.block - 1 in mine:
            from_above[_where(task, -1)] = task.tick
    arrives = lambda ticks: {n: _moment(t, _ARRIVAL) for n, t in ticks.items()}  # noqa: E731
    x, rooms_x = allocate(_lives(arrives(from_below), _reads(up)))
    ct, rooms_ct = allocate(_lives(arrives(from_above), _reads(down)))
    kept: dict[Hashable, int] = {}
    rooms_kept: dict[Role, int] = {}
    roles = roles_of(table)
    for role in {roles[k] for k in mine}:
        writes = {_where(t): _moment(t.tick, _FORWARD) for t in up if roles[t.block] == role}
        slots, rooms_kept[role] = allocate(_lives(writes, _reads(down)))
        kept |= slots
    weights, rooms_weights = allocate(_versions(table, mine, own, read))

    shapes = dict.fromkeys(("update", "old", "new", "read"), (table.ticks, len(mine)))
    fields = {
        name: np.zeros(shapes.get(name, table.ticks), np.int32) for name in Instructions._fields
    }

    def fill(tick: int, **values: int) -> None:
        for name, value in values.items():
            fields[name][tick] = value

    fields["x_to"][:], fields["ct_to"][:] = rooms_x, rooms_ct
    for task in up:
        k, n, i = where = _where(task)
        fill(task.tick, forward=1, round=k // devices, batch=n, part=i, last=i == table.parts - 1)
        fill(task.tick, x=x.get(where, 0), kept=kept[where], weights=weights[k, task.version])
    begun: set[tuple[int, int]] = set()
    for task in down:
        k, n, i = where = _where(task)
        fill(task.tick, backward=_BACKWARD[task.kind], back_round=k // devices)
        fill(task.tick, back_batch=n, back_part=i, back_kept=kept[where], ct=ct.get(where, 0))
        if not table.keeps[k]:
            fill(task.tick, back_weights=weights[k, task.version])
        if task.kind != "input_gradient":
            fill(task.tick, first=(k, n) not in begun)
            begun.add((k, n))
    for task in own:
        if task.kind == "update":
            at = task.tick, task.block // devices
            fields["update"][at] = 1
            fields["old"][at] = weights[task.block, task.version]
            fields["new"][at] = weights[task.block, task.version + 1]
            of_batch = read.get((task.block, task.batch), task.version)
            fields["read"][at] = weights[task.block, of_batch]
    for name, ticks, slots in (("x_to", from_below, x), ("ct_to", from_above, ct)):
        for value, tick in ticks.items():
            fill(tick, **{name: slots[value]})
    newest = [weights[k, table.batches] for k in mine]
    rooms: list[tuple[int, ...]] = [
        (rooms_x, rooms_ct, rooms_kept[roles[k]], rooms_weights, slot)
        for k, slot in zip(mine, newest, strict=True)
    ]
    return fields, rooms


def _where(task: Task, above: int = 0) -> Where:
    return task.block + above, task.batch, task.part


def _moment(tick: int, which: int) -> int:
    return tick * _MOMENTS + which


def _reads(tasks: Iterable[Task]) -> list[tuple[Where, int]]:
    which = lambda task: _FORWARD if task.kind == "forward" else _BACK  # noqa: E731
    return [(_where(task), _moment(task.tick, which(task))) for task in tasks]


def _lives(
    writes: Mapping[Any, int], reads: Iterable[tuple[Any, int]]
) -> dict[Hashable, tuple[int, int]]:
    """From the write to the last read."""
    last = dict(writes)
    for value, moment in reads:
        if value in last:
            last[value] = max(last[value], moment)
    return {value: (moment, last[value]) for value, moment in writes.items()}


def _versions(
    table: Table,
    blocks: Iterable[int],
    own: list[Task],
    read: Mapping[tuple[int, int], int],
) -> dict[Hashable, tuple[int, int]]:
    """When each version of the weights of blocks, (block, version), is made, and last read.

    The backward pass of a block that keeps its linearisation reads none.
    """
    end = _moment(table.ticks, 0)
    writes: dict[Hashable, int] = {(k, 0): -1 for k in blocks}
    reads: list[tuple[Hashable, int]] = [((k, table.batches), end) for k in blocks]
    for task in own:
        k, version = task.block, task.version
        if task.kind == "update":
            moment = _moment(task.tick, _UPDATE)
            writes[k, version + 1] = moment
            reads.append(((k, version), moment))
            reads.append(((k, read.get((k, task.batch), version)), moment))
        elif task.kind == "forward":
            reads.append(((k, version), _moment(task.tick, _FORWARD)))
        elif not table.keeps[k]:
            reads.append(((k, version), _moment(task.tick, _BACK)))
    return _lives(writes, reads)
