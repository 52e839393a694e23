"""A tick table with a thread and a device for each block, and queues between them."""

from __future__ import annotations

import atexit
import collections
import functools
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from parscan_bp.arguments import check_kind, described
from parscan_bp.pipeline.block_run import BlockRun, Post
from parscan_bp.pipeline.executors.mail import Mail, Port, Stopped
from parscan_bp.pipeline.executors.stream import Due, due_of
from parscan_bp.pipeline.fitting import output_shapes
from parscan_bp.pipeline.pipe import block_runs
from parscan_bp.pipeline.programs import Loss, Optimiser
from parscan_bp.pipeline.run_arguments import RunArguments, checked
from parscan_bp.pipeline.schedules import Schedule, Table, Task
from parscan_bp.pipeline.simulate import Trained
from parscan_bp.pipeline.timeline import Costs, Span, as_costs, slow_factors, timeline
from parscan_bp.types import Array, PyTree

WAITING = 2
"""Batches that may wait before block 0."""

_running: weakref.WeakSet[Threads] = weakref.WeakSet()
"""Those to be ended when the process ends; at work, they hold themselves."""


@functools.cache
def _end_all_at_exit() -> None:
    """An interpreter that ends under a thread in compiled code aborts the process."""
    atexit.register(_end_all)


def _end_all() -> None:
    for threads in list(_running):
        threads.close()


class Threads:
    """Blocks at work, a thread for each: what `run_mpmd` and `Pipeline` are made of.

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


def run_mpmd(
    blocks: Sequence[Any],
    schedule: Schedule,
    optimiser: Optimiser,
    loss: Loss,
    params: Sequence[PyTree],
    batches: Sequence[tuple[PyTree, PyTree]],
    *,
    devices: Sequence[Any] | None = None,
    states: Sequence[PyTree] | None = None,
    optimiser_states: Sequence[PyTree] | None = None,
    key: Array | None = None,
    weight: Callable[[PyTree], Any] | None = None,
    costs: Costs | None = None,
    slow: np.ndarray | None = None,
    spans: list[Span] | None = None,
) -> Trained:
    """Trains a network with the schedule of a pipeline, each block on a device of its own.

    The blocks may be as different as they like, and the schedule any. Each has compiled programs
    of its own, those of `simulate`, and a thread that does its tasks in the order of the `Table`:
    as soon as their operands are there, which come through queues from its neighbours alone. So a
    block that is slow delays whom it has to, when their queues are empty, and nobody else. What
    `simulate` computes, to the last bit, where the devices are alike.

    Args:
      blocks, schedule, optimiser, loss, params, batches, states, optimiser_states, key, weight: as
        in `simulate`. An optimiser that wants all gradients at once runs on the device of block 0,
        where the weights of all have to have room.
      devices: D of them; block k is on device k mod D. ``None`` is ``jax.devices()``.
      costs: what a batch is to take at a block, in seconds, at least: a task that takes less
        sleeps. ``None`` takes what it takes. To see what a schedule does on more devices than there
        are.
      slow: (ticks, blocks), factors by which tasks take longer, by sleeping; as in `timeline`.
      spans: a list, to which the `Span` of each task is added: when its block was busy with it, in
        seconds since the start.

    Returns:
      As `simulate`.

    Raises:
      TypeError, ValueError, NotImplementedError: as `simulate`, and `timeline` of ``slow``; if
        ``costs`` has a transfer, which takes what it takes.
      Exception: what a block raised in its thread.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> import parscan_bp as pb
      >>> blocks = [lambda w, x: w * x] * 3
      >>> error = lambda y, labels: jnp.mean((y - labels) ** 2)
      >>> batches = [(jnp.ones(4), jnp.full(4, 2.0))] * 30
      >>> run = pb.pipeline.run_mpmd(
      ...     blocks, pb.pipeline.DSP((1, 1, 0), (4, 2, 0)), optax.sgd(0.05), error,
      ...     [jnp.ones(())] * 3, batches)
      >>> bool(run.losses[-1] < 0.1 * run.losses[0])
      True
    """
    if spans is not None:
        check_kind("spans", spans, list)
    given = checked(
        blocks, schedule, optimiser, loss, params, batches, states, optimiser_states, key, weight
    )
    table, (runs, pairs, _) = given.table, prepared(given)
    lasts, places = _lasts(table, costs, slow), devices_of(devices, table.blocks)
    threads = Threads(runs, places, table.parts, lockstep=table.lockstep, lasts=lasts)
    try:
        threads.give(due_of(table.tasks))
        for n in range(table.batches):
            threads.enter(n, pairs if n == 0 else given.pairs(n))
        losses = jnp.stack([threads.loss(n) for n in range(table.batches)])
        threads.idle()
    finally:
        threads.close()
    if spans is not None:
        spans += threads.spans
    return trained(runs, losses)


class Prepared(NamedTuple):
    """A run before its first task.

    Attributes:
      runs: what each block holds.
      pairs: the parts of the first batch.
      outputs: shapes and dtypes of the output of each block, for a part of a batch.
    """

    runs: list[BlockRun]
    pairs: list[tuple[PyTree, PyTree]]
    outputs: list[PyTree]


def prepared(given: RunArguments) -> Prepared:
    """Checks that the first batch fits, with the errors of `simulate`."""
    blocks, table, key = given.blocks, given.table, given.key
    pairs = given.pairs(0)
    start = given.params, given.states
    runs = block_runs(
        blocks, table, given.optimiser, given.loss, key, *start, given.optimiser_states
    )
    return Prepared(runs, pairs, output_shapes(blocks, pairs[0][0], *start, key))


def trained(runs: Sequence[BlockRun], losses: Array) -> Trained:
    """What is left of a run."""
    params, states = [own.newest for own in runs], [own.state for own in runs]
    return Trained(params, states, [own.optimiser_state for own in runs], losses)


def devices_of(devices: Sequence[Any] | None, blocks: int) -> list[Any]:
    """The device of each block.

    Raises:
      TypeError, ValueError: if ``devices`` is no sequence of devices, or empty.
    """
    if devices is None:
        devices = jax.devices()
    if isinstance(devices, str) or not isinstance(devices, Sequence):
        raise TypeError(f"devices: got {described(devices)}; a sequence of devices is wanted")
    if not devices or not all(isinstance(each, jax.Device) for each in devices):
        raise ValueError(f"devices: got {described(devices)}; at least one jax.Device is wanted")
    return [devices[k % len(devices)] for k in range(blocks)]


def _lasts(
    table: Table, costs: Costs | None, slow: np.ndarray | None
) -> Callable[[Task, float], float]:
    """What a task is to take, of what it took."""
    if costs is not None and as_costs(costs).transfer:
        raise ValueError(
            f"costs: got a transfer of {costs.transfer}; between devices it takes what it takes: 0 "
            "is wanted"
        )
    factors = slow_factors(table, slow)
    seconds: dict[Task, float] = {}
    if costs is not None:
        for span in timeline(table, costs):
            seconds[span.task] = seconds.get(span.task, 0.0) + span.stop - span.start
    return lambda task, took: factors[task.tick][task.block] * seconds.get(task, took)
