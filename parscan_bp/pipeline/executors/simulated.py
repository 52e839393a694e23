"""A tick table run task by task on one device, the reference for every other executor."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from parscan_bp.arguments import described
from parscan_bp.pipeline.block_run import What, Where
from parscan_bp.pipeline.executors.base import Executor, Trained
from parscan_bp.pipeline.job import Job
from parscan_bp.pipeline.programs import Reads
from parscan_bp.pipeline.schedules import Task
from parscan_bp.types import Array, PyTree


@dataclasses.dataclass(frozen=True)
class Simulated(Executor):
    """Task by task, on one device, in the order of the table.

    Args:
      observe: called after each task with the task and what all blocks hold then: ``newest(block)``
        and ``weights`` by version; ``gradient``, of an update; ``inputs``, ``outputs``, ``labels``,
        ``cotangents``, ``linearisations`` that are still to be read, by (block, batch, part);
        ``losses`` by batch; ``states`` and ``optimiser_states``. ``None`` for nobody.

    Raises:
      TypeError: if ``observe`` is no function.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> import parscan_bp as pb
      >>> seen = []
      >>> run = pb.pipeline.run(
      ...     [lambda w, x: w * x], pb.pipeline.PipeDream(), optax.sgd(0.1),
      ...     lambda y, labels: jnp.mean((y - labels) ** 2), [jnp.ones(())],
      ...     [(jnp.ones(4), jnp.zeros(4))] * 2,
      ...     executor=pb.pipeline.Simulated(observe=lambda task, pipe: seen.append(task.kind)))
      >>> print(*seen)
      forward backward update forward backward update
    """

    observe: Callable[[Task, Pipe], None] | None = None

    def __post_init__(self):
        if self.observe is not None and not callable(self.observe):
            raise TypeError(
                f"observe: got {described(self.observe)}; a function (task, pipe), or None, is "
                "wanted"
            )

    def run(self, job: Job) -> Trained:
        pipe, table = Pipe(job), job.table
        for task, unread in job.due():
            pipe.run(task, unread)
            if self.observe is not None:
                self.observe(task, pipe)
        losses = [jnp.mean(jnp.stack(pipe.losses[n])) for n in range(table.batches)]
        return Trained.of(pipe.blocks, jnp.stack(losses))


class Pipe:
    """What all blocks hold at a moment of a run; what goes from one to the next is a dict.

    Attributes:
      blocks: of each what it holds.
      outputs: by (block, batch, part), those that the block above has not read yet.
      labels: those that are on the way.
      cotangents: the derivatives of the loss by the outputs of a block, not used yet.
      losses: by batch, that of each part.
    """

    def __init__(self, job: Job):
        self._job = job
        self.blocks = job.block_runs()
        self.outputs: dict[Where, PyTree] = {}
        self.labels: dict[Where, PyTree] = {}
        self.cotangents: dict[Where, PyTree] = {}
        self.losses: dict[int, list[Array]] = collections.defaultdict(list)
        self._boxes: dict[What, dict[Where, PyTree]] = {
            "output": self.outputs,
            "labels": self.labels,
            "cotangent": self.cotangents,
            "gradient": {},
            "updated": {},
        }
        self._running = self.blocks[0]

    def newest(self, block: int) -> PyTree:
        """The newest weights of a block."""
        return self.blocks[block].newest

    @property
    def gradient(self) -> PyTree:
        """That of an update, right after it; else ``None``."""
        return self._running.gradient

    @property
    def weights(self) -> list[dict[int, PyTree]]:
        """For each block its weights by version, the newest and those still to be read."""
        return [own.weights for own in self.blocks]

    @property
    def states(self) -> list[PyTree]:
        """Of each block."""
        return [own.state for own in self.blocks]

    @property
    def optimiser_states(self) -> list[PyTree]:
        """Of each block."""
        return [own.optimiser_state for own in self.blocks]

    @property
    def inputs(self) -> dict[Where, Reads]:
        """What backward passes will read, by (block, batch, part)."""
        return {(o.number, *part): reads for o in self.blocks for part, reads in o.inputs.items()}

    @property
    def linearisations(self) -> dict[Where, Any]:
        """What backward passes will pull through, by (block, batch, part)."""
        return {
            (own.number, *part): pull
            for own in self.blocks
            for part, pull in own.linearisations.items()
        }

    def run(self, task: Task, unread: Sequence[int]) -> None:
        """Does the next task of the table."""
        self._running.gradient = None
        self._running = self.blocks[task.block]
        where = (-1, task.batch, task.part)
        if task.kind == "forward" and task.block == 0 and where not in self.outputs:
            self._enter(task.batch)
        self._running.run(task, self, unread)

    def take(self, what: What, where: Where) -> PyTree:
        return self._boxes[what].pop(where)

    def put(self, what: What, where: Where, value: PyTree) -> None:
        if what == "loss":
            self.losses[where[1]].append(value)
        else:
            self._boxes[what][where] = value

    def _enter(self, batch: int) -> None:
        """The data and labels of all parts of a batch."""
        last = self._job.table.blocks - 1
        for part, (x, labels) in enumerate(self._job.pairs(batch)):
            self.put("output", (-1, batch, part), x)
            self.put("labels", (last, batch, part), labels)
