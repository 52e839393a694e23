"""What threads of a pipeline wait for: operands from their neighbours, and their turn."""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import jax

from parscan_bp.pipeline.block_run import Post, What, Where
from parscan_bp.pipeline.schedules.table import Due
from parscan_bp.types import PyTree

Box = dict[tuple[What, Where], PyTree]


class Stopped(Exception):
    """Another thread has failed, or nobody wants the rest."""


class Mail:
    """Boxes of what has been sent, and for each block its tasks; shared by all threads.

    All changes are made, and waited for, under one condition: there are few blocks, and what they
    wait for are passes, not instructions.

    Args:
      blocks: the numbers of the blocks here.
      lockstep: whether no block begins a tick before all are done with the one before.

    Attributes:
      box: what has been sent and not been taken.
    """

    def __init__(self, blocks: Iterable[int], *, lockstep: bool):
        self._changed = threading.Condition()
        self._lockstep = lockstep
        self._due: dict[int, collections.deque[Due]] = {k: collections.deque() for k in blocks}
        self._failure: BaseException | None = None
        self.box: Box = {}

    def give(self, due: Iterable[Due]) -> None:
        """More tasks, in an order in which they can run."""
        with self._changed:
            for each in due:
                self._due[each[0].block].append(each)
            self._changed.notify_all()

    def next(self, block: int) -> Due:
        """The next task of a block, once it may begin; it stays there until it is `done`."""
        own = self._due[block]

        def may_begin() -> bool:
            if not own or not self._lockstep:
                return bool(own)
            return all(
                not other or other[0][0].tick >= own[0][0].tick for other in self._due.values()
            )

        self._wait(may_begin)
        return own[0]

    def done(self, block: int) -> None:
        """The task that `next` gave is done."""
        with self._changed:
            self._due[block].popleft()
            self._changed.notify_all()

    def put(self, what: What, where: Where, value: PyTree) -> None:
        """Sends."""
        with self._changed:
            self.box[what, where] = value
            self._changed.notify_all()

    def take(self, what: What, where: Where) -> PyTree:
        """Waits until it is there."""
        self._wait(lambda: (what, where) in self.box)
        with self._changed:
            return self.box.pop((what, where))

    def wait_taken(self, what: What, where: Where) -> None:
        """Waits until somebody has taken it."""
        self._wait(lambda: (what, where) not in self.box)

    def wait_idle(self) -> None:
        """Waits until all tasks are done."""
        self._wait(lambda: not any(self._due.values()))

    def fail(self, error: BaseException) -> None:
        """Ends all waiting; the first failure is the one that counts."""
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def close(self) -> None:
        """Ends all waiting."""
        self.fail(Stopped())

    def raise_failure(self) -> None:
        """Raises what made a thread fail, if one did."""
        if self._failure is not None and not isinstance(self._failure, Stopped):
            raise self._failure

    def _wait(self, ready: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or ready())
            if self._failure is not None:
                raise Stopped


class Port:
    """A block's own end of a `Post`: what it takes, and when it sends.

    Values come to the block's device. A pass keeps the block busy from when its operands are there
    until its result is, or by sleeping for as long as ``lasts`` says.

    Args:
      post: what it takes from and sends by.
      device: of the block.
      lasts: seconds that a task took to those that it is to take.
    """

    def __init__(self, post: Post, device: Any, lasts: Callable[[Any, float], float]):
        self._post, self._device, self._lasts = post, device, lasts
        self._task: Any = None
        self._settled = False
        self.start = self.stop = 0.0

    def begin(self, task: Any) -> None:
        """A task begins now, or when the last of its operands is there."""
        self._task, self._settled = task, False
        self.start = time.perf_counter()

    def take(self, what: What, where: Where) -> PyTree:
        value = self._post.take(what, where)
        self.start = time.perf_counter()
        return jax.device_put(value, self._device)

    def put(self, what: What, where: Where, value: PyTree) -> None:
        self.settle(value)
        self._post.put(what, where, value)

    def settle(self, value: PyTree) -> None:
        """Waits until a result of the task is there, and the task's time is over."""
        jax.block_until_ready(value)
        if not self._settled:
            self._settled = True
            took = time.perf_counter() - self.start
            time.sleep(max(0.0, self._lasts(self._task, took) - took))
        self.stop = time.perf_counter()
