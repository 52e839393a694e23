"""What all blocks of a pipeline hold at a moment, and how one task changes it."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from parscan_bp.pipeline.blocks import Block
from parscan_bp.pipeline.fitting import check_batch, check_fit
from parscan_bp.pipeline.programs import Loss, Optimiser, Reads, key_of, programs_of, update_of
from parscan_bp.pipeline.schedules import Table, Task
from parscan_bp.pipeline.schedules.table import last_reads
from parscan_bp.types import Array, PyTree

Where = tuple[int, int, int]
"""Block, batch, part. The data come from block -1."""


class Pipe:
    """What all blocks hold at a moment of a run.

    Attributes:
      weights: for each block its weights by version, the newest and those still to be read.
      states: of each block.
      optimiser_states: of each block.
      labels: by (batch, part), of those that are on the way.
      outputs: those that the block above has not read yet.
      inputs: what a backward pass will read.
      linearisations: what a backward pass will pull through, of blocks that keep them. Each has
        its own copy of the weights that it reads, as no output of a program is its input.
      cotangents: the derivatives of the loss by the outputs of a block.
      gradients: by (block, batch), the sum over the parts so far.
      gradient: that of an update, right after it; else ``None``.
      losses: by batch, that of each part.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        table: Table,
        optimiser: Optimiser,
        loss: Loss,
        batches: Sequence[tuple[PyTree, PyTree]],
        key: Array,
        params: Sequence[PyTree],
        states: Sequence[PyTree],
        optimiser_states: Sequence[PyTree] | None,
    ):
        self._last = len(blocks) - 1
        self._blocks, self._table, self._loss = blocks, table, loss
        self._batches, self._key = batches, key
        self._programs = [
            programs_of(block, loss if k == self._last else None, k == 0)
            for k, block in enumerate(blocks)
        ]
        self._update = update_of(optimiser)
        self._unread = last_reads(table.tasks)
        self._new_states: list[list[PyTree]] = [[] for _ in blocks]
        self.weights = [{0: own} for own in params]
        self.states = list(states)
        # Made here: who called would keep them alive.
        if optimiser_states is None:
            optimiser_states = [optimiser.init(own) for own in params]
        self.optimiser_states = list(optimiser_states)
        self.labels: dict[tuple[int, int], PyTree] = {}
        self.outputs: dict[Where, PyTree] = {}
        self.inputs: dict[Where, Reads] = {}
        self.linearisations: dict[Where, Any] = {}
        self.cotangents: dict[Where, PyTree] = {}
        self.gradients: dict[tuple[int, int], PyTree] = {}
        self.gradient: PyTree = None
        self.losses: dict[int, list[Array]] = collections.defaultdict(list)

    def newest(self, block: int) -> PyTree:
        """The newest weights of a block."""
        return self.weights[block][max(self.weights[block])]

    def run(self, at: int, task: Task) -> None:
        """Does the task at a position of the table."""
        self.gradient = None
        kinds: dict[str, Callable[[Task, PyTree], None]] = {
            "forward": self._forward,
            "backward": self._backward,
            "input_gradient": self._input_gradient,
            "weight_gradient": self._weight_gradient,
            "update": self._step,
        }
        kinds[task.kind](task, self.weights[task.block][task.version])
        for version in self._unread.get(at, ()):
            del self.weights[task.block][version]

    def _forward(self, task: Task, weights: PyTree) -> None:
        k, where = task.block, (task.block, task.batch, task.part)
        if k == 0 and (-1, *where[1:]) not in self.outputs:
            self._enter(task.batch)
        labels = self.labels.pop(where[1:]) if k == self._last else None
        x = self.outputs.pop((k - 1, *where[1:]))
        reads = Reads(x, self.states[k], key_of(self._key, *where), labels)
        if self._table.keeps[k]:
            y, state, self.linearisations[where] = self._programs[k].linearise(weights, reads)
        else:
            y, state = self._programs[k].forward(weights, reads)
            self.inputs[where] = reads
        self._advance(k, state)
        if k < self._last:
            self.outputs[where] = y
        else:
            self.losses[task.batch].append(y)
            self.cotangents[where] = jnp.ones_like(y)

    def _enter(self, batch: int) -> None:
        """The data and labels of all parts of a batch."""
        parts = self._table.parts
        pairs = check_batch(batch, self._batches[batch], parts, self._table.name)
        if batch == 0:
            check_fit(self._blocks, self._loss, pairs[0], self._start(), self.states, self._key)
        for part, (x, labels) in enumerate(pairs):
            self.outputs[-1, batch, part] = x
            self.labels[batch, part] = labels

    def _start(self) -> list[PyTree]:
        return [self.newest(k) for k in range(self._last + 1)]

    def _advance(self, k: int, state: PyTree) -> None:
        """Counters and keys move with every part, statistics once a batch."""
        seen = self._new_states[k]
        seen.append(state)
        if len(seen) < self._table.parts:
            keep = lambda old, new: old if _is_float(new) else new  # noqa: E731
            self.states[k] = jax.tree.map(keep, self.states[k], state)
            return
        if len(seen) > 1:
            state = jax.tree.map(lambda *a: sum(a) / len(a) if _is_float(a[0]) else a[-1], *seen)
        self.states[k] = state
        seen.clear()

    def _backward(self, task: Task, weights: PyTree) -> None:
        k, where = task.block, (task.block, task.batch, task.part)
        ct = self.cotangents.pop(where)
        if self._table.keeps[k]:
            gradient, below = self._programs[k].pull(self.linearisations.pop(where), ct)
        else:
            gradient, below = self._programs[k].replay(weights, self.inputs.pop(where), ct)
        self._add(task, gradient)
        self._send_down(task, below)

    def _input_gradient(self, task: Task, weights: PyTree) -> None:
        k, where = task.block, (task.block, task.batch, task.part)
        if not self._table.keeps[k]:
            linear = self._programs[k].linearise(weights, self.inputs.pop(where))[2]
            self.linearisations[where] = linear
        if k > 0:
            pull = self._programs[k].pull_input
            self._send_down(task, pull(self.linearisations[where], self.cotangents[where]))

    def _weight_gradient(self, task: Task, weights: PyTree) -> None:
        where = (task.block, task.batch, task.part)
        linear, ct = self.linearisations.pop(where), self.cotangents.pop(where)
        self._add(task, self._programs[task.block].pull_weights(linear, ct))

    def _send_down(self, task: Task, ct: PyTree) -> None:
        if task.block > 0:
            self.cotangents[task.block - 1, task.batch, task.part] = ct

    def _add(self, task: Task, gradient: PyTree) -> None:
        key = (task.block, task.batch)
        so_far = self.gradients.get(key)
        self.gradients[key] = gradient if so_far is None else _sum(so_far, gradient)

    def _step(self, task: Task, weights: PyTree) -> None:
        k, parts = task.block, self._table.parts
        gradient = self.gradients.pop((k, task.batch))
        self.gradient = gradient if parts == 1 else _divide(gradient, parts)
        new, self.optimiser_states[k] = self._update(
            self.gradient, self.optimiser_states[k], weights
        )
        self.weights[k][task.version + 1] = new


def _is_float(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating)


@jax.jit
def _sum(a: PyTree, b: PyTree) -> PyTree:
    return jax.tree.map(jnp.add, a, b)


@jax.jit
def _divide(tree: PyTree, count: int) -> PyTree:
    return jax.tree.map(lambda a: a / jnp.asarray(count, a.dtype), tree)
