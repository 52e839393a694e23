"""A tick table with a thread and a device for each block."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from parscan_bp.arguments import check_kind, described
from parscan_bp.pipeline.executors.base import Executor, Trained
from parscan_bp.pipeline.executors.workers import Workers
from parscan_bp.pipeline.job import Job
from parscan_bp.pipeline.schedules import Table, Task
from parscan_bp.pipeline.timeline import Costs, Span, as_costs, slow_factors, timeline


# Arrays and lists have no equality that is one truth value.
@dataclasses.dataclass(frozen=True, eq=False)
class Threads(Executor):
    """Each block on a device of its own, with a thread that does its tasks.

    The blocks may be as different as they like, and the schedule any. Each has compiled programs
    of its own, those of `Simulated`, and a thread that does its tasks in the order of the `Table`:
    as soon as their operands are there, which come through queues from its neighbours alone. So a
    block that is slow delays whom it has to, when their queues are empty, and nobody else. What
    `Simulated` computes, to the last bit, where the devices are alike. An optimiser that wants all
    gradients at once runs on the device of block 0, where the weights of all have to have room.

    Args:
      devices: D of them; block k is on device k mod D. ``None`` is ``jax.devices()``.
      costs: what a batch is to take at a block, in seconds, at least: a task that takes less
        sleeps. ``None`` takes what it takes. To see what a schedule does on more devices than there
        are.
      slow: (ticks, blocks), factors by which tasks take longer, by sleeping; as in `timeline`.
      spans: a list, to which the `Span` of each task is added: when its block was busy with it, in
        seconds since the start.

    Raises:
      TypeError, ValueError: if they are none such; if ``costs`` has a transfer, which takes what it
        takes. By `run`, also as `timeline` of ``slow``, and what a block raised in its thread.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> import parscan_bp as pb
      >>> run = pb.pipeline.run(
      ...     [lambda w, x: w * x] * 3, pb.pipeline.DSP((1, 1, 0), (4, 2, 0)), optax.sgd(0.05),
      ...     lambda y, labels: jnp.mean((y - labels) ** 2), [jnp.ones(())] * 3,
      ...     [(jnp.ones(4), jnp.full(4, 2.0))] * 30, executor=pb.pipeline.Threads())
      >>> bool(run.losses[-1] < 0.1 * run.losses[0])
      True
    """

    devices: Sequence[Any] | None = None
    costs: Costs | None = None
    slow: np.ndarray | None = None
    spans: list[Span] | None = None

    def __post_init__(self):
        if self.devices is not None:
            devices_of(self.devices, 1)
        if self.spans is not None:
            check_kind("spans", self.spans, list)
        if self.costs is not None and as_costs(self.costs).transfer:
            raise ValueError(
                f"costs: got a transfer of {self.costs.transfer}; between devices it takes what it "
                "takes: 0 is wanted"
            )

    def run(self, job: Job) -> Trained:
        table, first, runs = job.table, job.pairs(0), job.block_runs()
        lasts, places = self._lasts(table), devices_of(self.devices, table.blocks)
        workers = Workers(runs, places, table.parts, lockstep=table.lockstep, lasts=lasts)
        try:
            workers.give(job.due())
            for n in range(table.batches):
                workers.enter(n, first if n == 0 else job.pairs(n))
            losses = jnp.stack([workers.loss(n) for n in range(table.batches)])
            workers.idle()
        finally:
            workers.close()
        if self.spans is not None:
            self.spans.extend(workers.spans)
        return Trained.of(runs, losses)

    def _lasts(self, table: Table) -> Callable[[Task, float], float]:
        """What a task is to take, of what it took."""
        factors = slow_factors(table, self.slow)
        seconds: dict[Task, float] = {}
        if self.costs is not None:
            for span in timeline(table, self.costs):
                seconds[span.task] = seconds.get(span.task, 0.0) + span.stop - span.start
        return lambda task, took: factors[task.tick][task.block] * seconds.get(task, took)


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
