"""How a stage's blocks are updated at the end of a tick, and what a stage holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from parscan_bp.pipeline.block_optimiser import BlockOptimiser
from parscan_bp.pipeline.executors import ring
from parscan_bp.pipeline.executors.instructions import Instructions
from parscan_bp.pipeline.programs import apply_updates
from parscan_bp.pipeline.schedules import Table
from parscan_bp.trees import row
from parscan_bp.types import Array, PyTree


class StageState(NamedTuple):
    """What one stage holds between ticks: V blocks, one for each round of the pipeline.

    Attributes:
      weights: a ring of versions, of all rounds.
      predicted: what forward passes read instead, a ring with the same slots, of an optimiser that
        predicts; else an empty tuple.
      optimiser_states: of each round, a list; of one step for all blocks, that alone.
      state: of each round.
      states: of each round, sum of the states that the parts of a batch have left so far.
      gradient: of each round, sum over the parts of a batch so far; an empty tuple where it need
        not be kept.
      x, ct: rings of what neighbours have sent.
      kept: for each role a ring of what its backward passes need.
    """

    weights: PyTree
    predicted: PyTree
    optimiser_states: list[PyTree]
    state: PyTree
    states: PyTree
    gradient: PyTree
    x: PyTree
    ct: PyTree
    kept: tuple[PyTree, ...]


@dataclasses.dataclass(frozen=True)
class StageUpdate:
    """(state, instructions, gradient of each round) -> state, with the updates that are due.

    Attributes:
      optimiser: of all blocks.
      table, stages, axis, data: as of `StageProgram`.
      here: which stage this is.
    """

    optimiser: BlockOptimiser
    table: Table
    stages: int
    axis: str
    data: str | None
    here: Array

    @property
    def rounds(self) -> int:
        """V, blocks of a stage."""
        return self.table.blocks // self.stages

    def block(self, at: Array | int) -> Array:
        """That of a round."""
        return at * self.stages + self.here

    def __call__(self, carry: StageState, now: Instructions, gradients: list[PyTree]) -> StageState:
        due = [now.update[at] == 1 for at in range(self.rounds)]
        old = [ring.get(carry.weights, now.old[at]) for at in range(self.rounds)]
        # Each in a branch of its own, as in programs of their own: in one, XLA may round a product
        # and a sum at once.
        means = [
            lax.cond(each, self._batch_mean, lambda gradient: gradient, own)
            for each, own in zip(due, gradients, strict=True)
        ]

        def step(update: Callable[..., Any], due: Array, *args: PyTree) -> tuple[PyTree, PyTree]:
            idle = lambda *args: (ring.zeros_like(jax.eval_shape(update, *args)[0]), args[1])  # noqa: E731
            return lax.cond(due, update, idle, *args)

        if self.table.together:
            updates, *states = step(self._of_all, due[0], means, *carry.optimiser_states, old)
        else:
            given = zip(due, means, carry.optimiser_states, old, strict=True)
            steps = [
                step(self.optimiser.own.update, *each, *self._read(carry, now, at))
                for at, each in enumerate(given)
            ]
            updates, states = map(list, zip(*steps, strict=True))
        new = [apply_updates(*each) for each in zip(old, updates, strict=True)]
        weights = _put(carry.weights, now, due, new)
        carry = carry._replace(weights=weights, optimiser_states=states)
        if (predict := self.optimiser.predicted) is None:
            return carry
        predicted = [
            lax.cond(each, predict, lambda params, _: params, *given)
            for each, *given in zip(due, new, states, strict=True)
        ]
        return carry._replace(predicted=_put(carry.predicted, now, due, predicted))

    def _read(self, carry: StageState, now: Instructions, at: int) -> tuple[PyTree, ...]:
        """What the forward pass has read of the weights, if updates are given it."""
        if not self.optimiser.read:
            return ()
        of = carry.predicted if self.optimiser.predicted else carry.weights
        return (ring.get(of, now.read[at]),)

    def _batch_mean(self, gradient: PyTree) -> PyTree:
        """Of a batch, over its parts and the devices that have them."""
        whole = gradient if self.data is None else lax.pmean(gradient, self.data)
        return jax.tree.map(lambda g: g / jnp.asarray(self.table.parts, g.dtype), whole)

    def _of_all(
        self, gradients: list[PyTree], state: PyTree, weights: list[PyTree]
    ) -> tuple[list[PyTree], PyTree]:
        """This stage's updates out of one step for all, which every stage makes."""
        every = lax.all_gather((gradients, weights), self.axis)
        blocks = [divmod(k, self.stages) for k in range(self.table.blocks)]
        ours, theirs = (
            [jax.tree.map(lambda a, d=d: a[d], own[at]) for at, d in blocks] for own in every
        )
        updates, state = self.optimiser.own.update(ours, state, theirs)
        stacked = jax.tree.map(lambda *own: jnp.stack(own), *updates)
        return [row(stacked, self.block(at)) for at in range(self.rounds)], state


def _put(into: PyTree, now: Instructions, due: list[Array], new: list[PyTree]) -> PyTree:
    """A ring of versions with those that are due."""
    for at, each in enumerate(due):
        kept = ring.get(into, now.new[at])
        entry = jax.tree.map(lambda a, b, each=each: jnp.where(each, a, b), new[at], kept)
        into = ring.put(into, now.new[at], entry)
    return into
