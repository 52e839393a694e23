"""What one block of a pipeline holds at a moment, and how one task changes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp

from parscan_bp.pipeline.block_optimiser import BlockOptimiser
from parscan_bp.pipeline.blocks import Network
from parscan_bp.pipeline.optimiser_state import start_states
from parscan_bp.pipeline.programs import (
    Loss,
    Programs,
    Reads,
    compiled,
    is_float,
    programs_of,
    random_key_of,
    update_of,
)
from parscan_bp.pipeline.schedules import Table, Task
from parscan_bp.trees import nbytes
from parscan_bp.types import Array, PyTree

Where = tuple[int, int, int]
"""Block, batch, part. The data come from block -1."""

MicroBatch = tuple[int, int]
"""Batch, part."""

HELD = (
    "key",
    "weights",
    "predicted",
    "read",
    "state",
    "optimiser_state",
    "inputs",
    "linearisations",
    "cotangents",
    "gradients",
    "new_states",
)
"""Attributes of a `BlockRun` that are arrays."""

What = Literal["output", "labels", "cotangent", "loss", "gradient", "updated"]
"""The output of a block; labels and loss, of the last one; the derivative of the loss by the output
of a block; where all are updated together, what a block has for block 0, the batch's gradient and
the weights, and what it gets back, new weights."""


class Post(Protocol):
    """What goes from block to block. Everything is taken once."""

    def take(self, what: What, where: Where) -> PyTree:
        """What is there, or will be: who takes may have to wait."""

    def put(self, what: What, where: Where, value: PyTree) -> None:
        """For the one who takes it."""


class BlockRun:
    """One block in a run, the same in every executor that runs tasks one by one.

    Attributes:
      weights: by version, the newest and those still to be read.
      predicted: by version, what forward passes read instead, of an optimiser that predicts.
      read: by batch, what its forward pass has read, of an optimiser that is to be given it.
      state, optimiser_state: of the block.
      key: random key of the run.
      inputs: by (batch, part), what a backward pass will read.
      linearisations: what a backward pass will pull through, of a block that keeps them. Each has
        its own copy of the weights that it reads, as no output of a program is its input.
      cotangents: those of which a part of the backward pass is still to come.
      gradients: by batch, the sum over the parts so far.
      gradient: that of an update, right after it; else ``None``.
      new_states: that the parts of a batch have left so far.
    """

    def __init__(
        self,
        number: int,
        blocks: int,
        parts: int,
        keeps: bool,
        programs: Programs,
        optimiser: BlockOptimiser,
        key: Array,
        params: PyTree,
        state: PyTree,
        optimiser_state: PyTree,
        together: bool,
    ):
        self._blocks, self._together = blocks, together
        self.number, self._last = number, blocks - 1
        self.is_last = number == blocks - 1
        self._parts, self._keeps = parts, keeps
        self._programs, self._update, self.key = programs, update_of(optimiser.own), key
        self._optimiser = optimiser
        self.weights: dict[int, PyTree] = {}
        self.predicted: dict[int, PyTree] = {}
        self.read: dict[int, PyTree] = {}
        self.state, self.optimiser_state = state, optimiser_state
        self._now(0, params)
        self.inputs: dict[MicroBatch, Reads] = {}
        self.linearisations: dict[MicroBatch, Any] = {}
        self.cotangents: dict[MicroBatch, PyTree] = {}
        self.gradients: dict[int, PyTree] = {}
        self.gradient: PyTree = None
        self.new_states: list[PyTree] = []
        self._added = 0

    @property
    def newest(self) -> PyTree:
        """The newest weights."""
        return self.weights[max(self.weights)]

    @property
    def bytes_held(self) -> int:
        """Of all that it holds; an array that is held in several places counts once."""
        leaves = jax.tree.leaves([getattr(self, name) for name in HELD])
        return nbytes({id(leaf): leaf for leaf in leaves})

    def place(self, device: Any) -> None:
        """Puts all that the block holds on a device."""
        for name in HELD:
            setattr(self, name, jax.device_put(getattr(self, name), device))

    def linear_of(self, reads: Reads) -> Any:
        """The linearisation that is kept of shapes and dtypes, as shapes and dtypes."""
        return jax.eval_shape(self._programs.linearise, self.newest, reads)[2]

    def next_optimiser_state(self) -> PyTree:
        """What an update makes of the optimiser's state, as shapes and dtypes."""
        if self._together:
            return self.optimiser_state
        return jax.eval_shape(self._update, self.newest, self.optimiser_state, self.newest)[1]

    def restart(self, salt: int) -> None:
        """Counts versions and batches from 0 again, with other random keys, once all is done."""
        newest = self.newest
        self.weights.clear()
        self.predicted.clear()
        self._now(0, newest)
        self.key = jax.random.fold_in(self.key, salt)

    def run(self, task: Task, post: Post, unread: Sequence[int] = ()) -> None:
        """Does a task, and drops the versions of the weights that nobody reads after it."""
        self.gradient = None
        kinds: dict[str, Callable[[Task, PyTree, Post], None]] = {
            "forward": self._forward,
            "backward": self._backward,
            "input_gradient": self._input_gradient,
            "weight_gradient": self._weight_gradient,
            "update": self._step,
        }
        kinds[task.kind](task, self.weights[task.version], post)
        for version in unread:
            del self.weights[version]
            self.predicted.pop(version, None)

    def _now(self, version: int, weights: PyTree) -> None:
        """The weights of a version, and with the state of the optimiser that belongs to them what
        is predicted."""
        self.weights[version] = weights
        if self._optimiser.predicted is not None:
            predict = compiled(self._optimiser.predicted)
            self.predicted[version] = predict(weights, self.optimiser_state)

    def _forward(self, task: Task, weights: PyTree, post: Post) -> None:
        k, part = self.number, (task.batch, task.part)
        labels = post.take("labels", (k, *part)) if k == self._last else None
        x = post.take("output", (k - 1, *part))
        weights = self.predicted.get(task.version, weights)
        if self._optimiser.read:
            self.read[task.batch] = weights
        reads = Reads(x, self.state, random_key_of(self.key, k, *part), labels)
        if self._keeps:
            y, state, self.linearisations[part] = self._programs.linearise(weights, reads)
        else:
            y, state = self._programs.forward(weights, reads)
            self.inputs[part] = reads
        self._advance(state)
        if k < self._last:
            post.put("output", (k, *part), y)
        else:
            post.put("loss", (k, *part), y)
            post.put("cotangent", (k, *part), jnp.ones_like(y))

    def _advance(self, state: PyTree) -> None:
        """Counters and keys move with every part, statistics once a batch."""
        self.new_states.append(state)
        if len(self.new_states) < self._parts:
            keep = lambda old, new: old if is_float(new) else new  # noqa: E731
            self.state = jax.tree.map(keep, self.state, state)
            return
        if len(self.new_states) > 1:
            mean = lambda *a: sum(a) / len(a) if is_float(a[0]) else a[-1]  # noqa: E731
            state = jax.tree.map(mean, *self.new_states)
        self.state = state
        self.new_states.clear()

    def _backward(self, task: Task, weights: PyTree, post: Post) -> None:
        part = (task.batch, task.part)
        ct = post.take("cotangent", (self.number, *part))
        if self._keeps:
            gradient, below = self._programs.pull(self.linearisations.pop(part), ct)
        else:
            gradient, below = self._programs.replay(weights, self.inputs.pop(part), ct)
        self._send_down(part, below, post)
        self._add(task, gradient, post)

    def _input_gradient(self, task: Task, weights: PyTree, post: Post) -> None:
        part = (task.batch, task.part)
        if not self._keeps:
            linear = self._programs.linearise(weights, self.inputs.pop(part))[2]
            self.linearisations[part] = linear
        ct = self.cotangents[part] = post.take("cotangent", (self.number, *part))
        if self.number > 0:
            self._send_down(part, self._programs.pull_input(self.linearisations[part], ct), post)

    def _weight_gradient(self, task: Task, weights: PyTree, post: Post) -> None:
        del weights
        part = (task.batch, task.part)
        linear, ct = self.linearisations.pop(part), self.cotangents.pop(part)
        self._add(task, self._programs.pull_weights(linear, ct), post)

    def _send_down(self, part: MicroBatch, ct: PyTree, post: Post) -> None:
        if self.number > 0:
            post.put("cotangent", (self.number - 1, *part), ct)

    def _add(self, task: Task, gradient: PyTree, post: Post) -> None:
        so_far = self.gradients.get(task.batch)
        self.gradients[task.batch] = gradient if so_far is None else _sum(so_far, gradient)
        self._added += 1
        if self._together and self._added == self._parts:
            self._added = 0
            mean = self.gradients[task.batch] = self._mean(self.gradients[task.batch])
            if self.number > 0:
                post.put("gradient", (self.number, task.batch, 0), (mean, self.newest))

    def _mean(self, total: PyTree) -> PyTree:
        return total if self._parts == 1 else _divide(total, self._parts)

    def _step(self, task: Task, weights: PyTree, post: Post) -> None:
        gradient = self.gradients.pop(task.batch)
        self.gradient = gradient if self._together else self._mean(gradient)
        if self._together:
            new = self._step_together(task.batch, weights, post)
        else:
            read = (self.read.pop(task.batch),) if self._optimiser.read else ()
            given = self.gradient, self.optimiser_state, weights, *read
            new, self.optimiser_state = self._update(*given)
        self._now(task.version + 1, new)

    def _step_together(self, batch: int, weights: PyTree, post: Post) -> PyTree:
        """The new weights: block 0 makes those of all, as it has the optimiser's state."""
        if self.number > 0:
            return post.take("updated", (self.number, batch, 0))
        others = [post.take("gradient", (k, batch, 0)) for k in range(1, self._blocks)]
        gradients, all_weights = zip((self.gradient, weights), *others, strict=True)
        made, self.optimiser_state = self._update(
            list(gradients), self.optimiser_state, list(all_weights)
        )
        for k in range(1, self._blocks):
            post.put("updated", (k, batch, 0), made[k])
        return made[0]


def block_runs(
    network: Network,
    table: Table,
    optimisers: Sequence[BlockOptimiser],
    loss: Loss,
    optimiser_states: Sequence[PyTree] | None = None,
) -> list[BlockRun]:
    """All blocks at the start; ``None`` for fresh states of the optimiser."""
    blocks, params, states, key = network
    last = len(blocks) - 1
    # Made here: who called would keep them alive.
    pairs = [own.own for own in optimisers]
    begun = start_states(pairs, params, optimiser_states, table.together)
    return [
        BlockRun(
            k,
            len(blocks),
            table.parts,
            table.keeps[k],
            programs_of(block, loss if k == last else None, k == 0),
            optimisers[k],
            key,
            params[k],
            states[k],
            begun[k],
            table.together,
        )
        for k, block in enumerate(blocks)
    ]


@jax.jit
def _sum(a: PyTree, b: PyTree) -> PyTree:
    return jax.tree.map(jnp.add, a, b)


@jax.jit
def _divide(tree: PyTree, count: int) -> PyTree:
    return jax.tree.map(lambda a: a / jnp.asarray(count, a.dtype), tree)
