"""What all blocks of a pipeline hold at a moment, on one device."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

from parscan_bp.pipeline.block_run import BlockRun, What, Where
from parscan_bp.pipeline.blocks import Block
from parscan_bp.pipeline.optimiser_state import start_states
from parscan_bp.pipeline.programs import Loss, Optimiser, Reads, programs_of, update_of
from parscan_bp.pipeline.run_arguments import RunArguments
from parscan_bp.pipeline.schedules import Table, Task
from parscan_bp.pipeline.schedules.table import last_reads
from parscan_bp.types import Array, PyTree


class Pipe:
    """What all blocks hold at a moment of a run; what goes from one to the next is a dict.

    Attributes:
      blocks: of each what it holds.
      outputs: by (block, batch, part), those that the block above has not read yet.
      labels: those that are on the way.
      cotangents: the derivatives of the loss by the outputs of a block, not used yet.
      losses: by batch, that of each part.
    """

    def __init__(self, given: RunArguments):
        self._given = given
        self._unread = last_reads(given.table.tasks)
        self.blocks = block_runs(
            given.blocks,
            given.table,
            given.optimiser,
            given.loss,
            given.key,
            given.params,
            given.states,
            given.optimiser_states,
        )
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

    def run(self, at: int, task: Task) -> None:
        """Does the task at a position of the table."""
        self._running.gradient = None
        self._running = self.blocks[task.block]
        where = (-1, task.batch, task.part)
        if task.kind == "forward" and task.block == 0 and where not in self.outputs:
            self._enter(task.batch)
        self._running.run(task, self, self._unread.get(at, ()))

    def take(self, what: What, where: Where) -> PyTree:
        return self._boxes[what].pop(where)

    def put(self, what: What, where: Where, value: PyTree) -> None:
        if what == "loss":
            self.losses[where[1]].append(value)
        else:
            self._boxes[what][where] = value

    def _enter(self, batch: int) -> None:
        """The data and labels of all parts of a batch."""
        last = self._given.table.blocks - 1
        for part, (x, labels) in enumerate(self._given.pairs(batch)):
            self.put("output", (-1, batch, part), x)
            self.put("labels", (last, batch, part), labels)


def block_runs(
    blocks: Sequence[Block],
    table: Table,
    optimiser: Optimiser,
    loss: Loss,
    key: Array,
    params: Sequence[PyTree],
    states: Sequence[PyTree],
    optimiser_states: Sequence[PyTree] | None,
) -> list[BlockRun]:
    """All blocks at the start; ``None`` for fresh states of the optimiser."""
    last = len(blocks) - 1
    # Made here: who called would keep them alive.
    begun = start_states(optimiser, params, optimiser_states, table.together)
    return [
        BlockRun(
            k,
            len(blocks),
            table.parts,
            table.keeps[k],
            programs_of(block, loss if k == last else None, k == 0),
            update_of(optimiser),
            key,
            params[k],
            states[k],
            begun[k],
            table.together,
        )
        for k, block in enumerate(blocks)
    ]
