"""Whether tasks can run in their order, and whether they are all there."""

from __future__ import annotations

import collections
from collections.abc import Sequence

from parscan_bp.pipeline.schedules.task import LETTERS, Task

Key = tuple[str, int, int, int]


def check_tasks(tasks: Sequence[Task], keeps: Sequence[bool], batches: int, parts: int) -> None:
    """Raises `ValueError` unless every task comes once, and after what it needs.

    Every block does the forward and the backward pass of every part of every batch (or the two
    halves of the latter, the input's first), and one update with every batch. A pass needs that
    of its neighbour; the gradient of a batch is whole before its update, which starts from the
    newest weights; no pass reads weights that are not made yet, and the backward pass of a block
    that keeps its linearisation reads those of the forward pass.
    """
    blocks = len(keeps)
    done: set[Key] = set()
    forward: dict[tuple[int, int, int], int] = {}
    updates = [0] * blocks
    tick = 0
    for task in tasks:
        where = f"tasks: {task.kind} of batch {task.batch}, part {task.part} at block {task.block}"
        if task.kind not in LETTERS:
            raise ValueError(f"tasks: got the kind {task.kind!r}; one of {', '.join(LETTERS)}")
        if not (0 <= task.block < blocks and 0 <= task.batch < batches and 0 <= task.part < parts):
            raise ValueError(
                f"{where}: there are {blocks} blocks, {batches} batches and {parts} parts"
            )
        if task.tick < tick:
            raise ValueError(f"{where}: its tick {task.tick} comes after tick {tick}")
        tick = task.tick
        key = (task.kind, task.block, task.batch, task.part)
        if key in done:
            raise ValueError(f"{where}: it is there twice")
        for needed in _needs(task, blocks, parts):
            if not _is_done(needed, done):
                kind, block, batch, part = needed
                raise ValueError(
                    f"{where}: it comes before what it needs, the {kind} of batch {batch}, part "
                    f"{part} at block {block}"
                )
        _check_version(task, updates[task.block], where)
        own = forward.setdefault(key[1:], task.version)
        if task.kind != "update" and keeps[task.block] and own != task.version:
            raise ValueError(
                f"{where}: it reads weights of version {task.version}, but block {task.block} "
                f"keeps its linearisation, which is of version {own}"
            )
        updates[task.block] += task.kind == "update"
        done.add(key)
    _check_all_there(done, blocks, batches, parts)


def _needs(task: Task, blocks: int, parts: int) -> list[Key]:
    k, n, i = task.block, task.batch, task.part
    if task.kind == "forward":
        return [("forward", k - 1, n, i)] if k > 0 else []
    if task.kind == "update":
        return [("weight_gradient", k, n, part) for part in range(parts)]
    needed = [("forward", k, n, i)]
    if k < blocks - 1:
        needed.append(("input_gradient", k + 1, n, i))
    if task.kind == "weight_gradient":
        needed.append(("input_gradient", k, n, i))
    return needed


def _is_done(key: Key, done: set[Key]) -> bool:
    """A backward pass is both gradients."""
    return key in done or (key[0].endswith("gradient") and ("backward", *key[1:]) in done)


def _check_version(task: Task, updates: int, where: str) -> None:
    if task.kind == "update" and task.version != updates:
        raise ValueError(
            f"{where}: it starts from version {task.version}; the newest weights have had "
            f"{updates} updates"
        )
    if not 0 <= task.version <= updates:
        raise ValueError(
            f"{where}: it reads weights of version {task.version}; the block has had {updates} "
            "updates by then"
        )


def _check_all_there(done: set[Key], blocks: int, batches: int, parts: int) -> None:
    count = collections.Counter(kind for kind, *_ in done)
    if count["input_gradient"] != count["weight_gradient"]:
        raise ValueError(
            f"tasks: got {count['input_gradient']} input and {count['weight_gradient']} weight "
            "gradients; each is a half of a backward pass"
        )
    passes = blocks * batches * parts
    got = (count["forward"], count["backward"] + count["weight_gradient"], count["update"])
    if got != (passes, passes, blocks * batches):
        raise ValueError(
            f"tasks: got {got[0]} forward passes, {got[1]} backward passes and {got[2]} updates; "
            f"{passes}, {passes} and {blocks * batches} are wanted"
        )
