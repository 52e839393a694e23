"""Blocks at work, a thread and a device for each, and queues between them."""

from __future__ import annotations

import atexit
import collections
import functools
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax.numpy as jnp

from parscan_bp.pipeline.block_run import BlockRun, Post
from parscan_bp.pipeline.executors.mail import Mail, Port, Stopped
from parscan_bp.pipeline.schedules import Task
from parscan_bp.pipeline.schedules.table import Due
from parscan_bp.pipeline.timeline import Span
from parscan_bp.types import Array, PyTree

WAITING = 2
"""Batches that may wait before block 0."""

_running: weakref.WeakSet[Workers] = weakref.WeakSet()
"""Those to be ended when the process ends; at work, they hold themselves."""


@functools.cache
def _end_all_at_exit() -> None:
    """An interpreter that ends under a thread in compiled code aborts the process."""
    atexit.register(_end_all)


def _end_all() -> None:
    for workers in list(_running):
        workers.close()


class Workers:
    """Blocks at work, a thread for each: what `Threads`, `Processes` and `Pipeline` are made of.

    Every thread does the tasks of its block in their order. It waits for the operands that it
    needs and for nothing else; of a schedule in lockstep, also for the others at the end of ticks.

    Args:
      runs: what each block holds.
      devices: of each block.
      parts: of a batch.
      lockstep: of the schedule.
      lasts: (task, seconds that it took) to the seconds that it is to take.
      remember: how many of the last tasks; ``None`` is all.
      reach: what reaches blocks that are in other processes, of what reaches those here; ``None``
        if there are none. Threads that wait for another process cannot be ended from here.

    Attributes:
      runs: what each block holds; to be read when all is `idle`.
      mail: what is between them.
      spans: of the tasks done, in seconds since the start.
    """

    def __init__(
        self,
        runs: Sequence[BlockRun],
        devices: Sequence[Any],
        parts: int,
        *,
        lockstep: bool,
        lasts: Callable[[Task, float], float],
        remember: int | None = None,
        reach: Callable[[Post], Post] | None = None,
    ):
        self.runs, self._parts = runs, parts
        self.mail = Mail([own.number for own in runs], lockstep=lockstep)
        self.spans: collections.deque[Span] = collections.deque(maxlen=remember)
        self._began = time.perf_counter()
        self._all_here = reach is None
        post = self.mail if reach is None else reach(self.mail)
        ports = [Port(post, device, lasts) for device in devices]
        self._threads = [
            threading.Thread(target=self._work, args=own, daemon=True)
            for own in zip(runs, ports, strict=True)
        ]
        for own, device in zip(runs, devices, strict=True):
            own.place(device)
        if self._all_here:
            _running.add(self)
            _end_all_at_exit()
        for thread in self._threads:
            thread.start()

    def _work(self, run: BlockRun, port: Port) -> None:
        k = run.number
        try:
            while True:
                task, unread = self.mail.next(k)
                port.begin(task)
                run.run(task, port, unread)
                port.settle((run.gradients, run.optimiser_state, run.weights))
                self.spans.append(Span(task, port.start - self._began, port.stop - self._began))
                self.mail.done(k)
        except Stopped:
            pass
        except BaseException as error:
            error.add_note(f"in the thread of block {k}")
            self.mail.fail(error)

    def enter(self, batch: int, pairs: Sequence[tuple[PyTree, PyTree]]) -> None:
        """The parts of a batch, for the first and the last block. Waits while there are enough."""
        first, last = self.runs[0], self.runs[-1]
        before = (batch - WAITING, self._parts - 1)
        if first.number == 0:
            self._wait(lambda: self.mail.wait_taken("output", (-1, *before)))
        elif last.is_last:
            self._wait(lambda: self.mail.wait_taken("labels", (last.number, *before)))
        for part, (x, labels) in enumerate(pairs):
            if first.number == 0:
                self.mail.put("output", (-1, batch, part), x)
            if last.is_last:
                self.mail.put("labels", (last.number, batch, part), labels)

    def give(self, due: Iterable[Due]) -> None:
        """More tasks, in an order in which they can run."""
        self.mail.give(due)

    def loss(self, batch: int) -> Array:
        """Of a batch, the mean over its parts; waits for it. To be asked for once."""
        parts = [
            self._wait(
                functools.partial(self.mail.take, "loss", (self.runs[-1].number, batch, part))
            )
            for part in range(self._parts)
        ]
        return jnp.mean(jnp.stack(parts))

    def idle(self) -> None:
        """Waits until all tasks that were given are done."""
        self._wait(self.mail.wait_idle)

    def close(self) -> None:
        """Ends the threads, whatever is left to do."""
        self.mail.close()
        for thread in self._threads:
            thread.join()

    def _wait(self, how: Callable[[], Any]) -> Any:
        try:
            return how()
        except Stopped:
            pass
        if self._all_here:
            self.close()
        self.mail.raise_failure()
        raise RuntimeError("the threads of this pipeline have ended")
