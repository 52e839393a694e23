"""What each device of a 'stage' axis does, as one traced program that reads `Instructions`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from parscan_bp.originals import lax_scan
from parscan_bp.pipeline.block_optimiser import BlockOptimiser
from parscan_bp.pipeline.blocks import Block
from parscan_bp.pipeline.executors import ring
from parscan_bp.pipeline.executors.instructions import (
    INPUT_GRADIENT,
    NOTHING,
    Instructions,
    Rooms,
    roles_of,
    updates_wait,
)
from parscan_bp.pipeline.executors.stage_update import StageState, StageUpdate
from parscan_bp.pipeline.programs import (
    Loss,
    Reads,
    is_float,
    programs_of,
    random_key_of,
)
from parscan_bp.pipeline.schedules import Table
from parscan_bp.trees import row
from parscan_bp.types import Array, PyTree


@dataclasses.dataclass(frozen=True)
class StageProgram:
    """(plan, params, states, optimiser states, xs, labels, key) -> the first three, and losses.

    To be traced inside `jax.shard_map`. The plan has the axes (ticks, stages); what is of blocks
    has a leading one of them, those of a stage in a row. What
    a stage has to do in a tick it does in branches of conditionals: no pass is made that the table
    does not have, and each is compiled by itself, by `Simulated`. What neighbours are to get goes
    through two permutations at the end of every tick.

    Attributes:
      block, loss: as in `run`.
      optimiser: of all blocks.
      table: the tick table.
      rooms: of its instructions.
      stages: D, how many.
      axis: of the stages.
      data: of the rows of a batch, or ``None``.
    """

    block: Block
    optimiser: BlockOptimiser
    loss: Loss
    table: Table
    rooms: Rooms
    stages: int
    axis: str
    data: str | None

    def __call__(
        self,
        plan: Instructions,
        params: PyTree,
        states: PyTree,
        optimiser_states: PyTree,
        xs: PyTree,
        labels: PyTree,
        key: Array,
    ) -> Any:
        here = lax.axis_index(self.axis)
        if self.data is not None:
            key = jax.random.fold_in(key, lax.axis_index(self.data))
        run = _Run(self, here, key, xs, labels, params, states)
        plan = Instructions(*(field[:, 0] for field in plan))
        carry, losses = lax_scan(run.tick, run.start(optimiser_states), plan)
        slots = jnp.asarray(self.rooms.newest).reshape(-1, self.stages)[:, here]
        newest = jax.tree.map(lambda a: a[slots], carry.weights)
        state = carry.state
        if self.data is not None:
            # Each device has seen its own rows only.
            losses, state = _mean((losses, state), self.data)
        begun = jax.tree.map(lambda *own: jnp.stack(own), *carry.optimiser_states)
        return newest, state, begun, losses[None]


class _Run:
    """One trace of a `StageProgram`."""

    def __init__(
        self,
        stage: StageProgram,
        here: Array,
        key: Array,
        xs: PyTree,
        labels: PyTree,
        params: PyTree,
        states: PyTree,
    ):
        table = stage.table
        self.stage, self.table, self.here = stage, table, here
        self.key, self.xs, self.labels = key, xs, labels
        self.params, self.states = params, states
        self.own, state = row((params, states), 0)
        self.rounds = table.blocks // stage.stages
        self.updates = StageUpdate(
            stage.optimiser, table, stage.stages, stage.axis, stage.data, here
        )
        roles = roles_of(table)
        self.roles = sorted(set(roles))
        self.role_at = [self.roles.index(role) for role in roles]
        self.keeps_gradient = table.parts > 1 or updates_wait(table)
        # The first stage makes the gradient of its input, too: all devices have one program.
        self.programs = [
            programs_of(stage.block, stage.loss if role.is_last else None, False)
            for role in self.roles
        ]
        self.x = jax.tree.map(lambda a: a[0, 0], xs)
        reads = Reads(self.x, state, key, jax.tree.map(lambda a: a[0, 0], labels))
        self.pulls = [
            jax.eval_shape(each.linearise, self.own, reads)[2] if role.keeps else None
            for role, each in zip(self.roles, self.programs, strict=True)
        ]
        loss = jax.eval_shape(self.programs[-1].forward, self.own, reads)[0]
        self.no_loss = ring.zeros_like(loss)
        # What a backward pass that linearises again needs beside its weights.
        self.entries = [
            (self.x, state) if pull is None else jax.tree.leaves(pull) for pull in self.pulls
        ]

    def start(self, optimiser_states: PyTree) -> StageState:
        rooms, parts = self.stage.rooms, self.table.parts
        states = 1 if self.table.together else self.rounds
        weights = ring.empty(max(rooms.weights), self.own)
        begun = [row(optimiser_states, at) for at in range(states)]
        for at in range(self.rounds):
            weights = ring.put(weights, at, row(self.params, at))
        predicted: PyTree = ()
        if predict := self.stage.optimiser.predicted:
            predicted = weights
            for at in range(self.rounds):
                predicted = ring.put(predicted, at, predict(row(self.params, at), begun[at]))
        return StageState(
            weights=weights,
            predicted=predicted,
            optimiser_states=begun,
            state=self.states,
            states=ring.zeros_like(self.states) if parts > 1 else (),
            gradient=ring.zeros_like(self.params) if self.keeps_gradient else (),
            # One slot more, for what nobody reads.
            x=ring.empty(max(rooms.x) + 1, self.x),
            ct=ring.empty(max(rooms.ct) + 1, self.x),
            kept=tuple(
                ring.empty(self._most_kept(at) + 1, entry) for at, entry in enumerate(self.entries)
            ),
        )

    def _most_kept(self, role: int) -> int:
        kept = self.stage.rooms.kept
        return max(own for own, at in zip(kept, self.role_at, strict=True) if at == role)

    def tick(self, carry: StageState, now: Instructions) -> tuple[StageState, Array]:
        carry, up, loss = self._forward(carry, now)
        carry, gradient, down = self._backward(carry, now)
        carry = self.updates(carry, now, gradient)
        x, ct = self._exchange(up, down)
        arrived = {"x": ring.put(carry.x, now.x_to, x), "ct": ring.put(carry.ct, now.ct_to, ct)}
        return carry._replace(**arrived), loss

    def _exchange(self, up: PyTree, down: PyTree) -> tuple[PyTree, PyTree]:
        """What both neighbours have made in this tick."""
        axis, stages = self.stage.axis, self.stage.stages
        # Of several rounds the first stage goes on where the last one ends.
        last = stages if self.rounds > 1 else stages - 1
        above = [(d, (d + 1) % stages) for d in range(last)]
        below = [(there, here) for here, there in above]
        return lax.ppermute(up, axis, above), lax.ppermute(down, axis, below)

    def _forward(self, carry: StageState, now: Instructions) -> tuple[StageState, PyTree, Array]:
        """The pass, what goes to the stage above, and the loss at the last stage."""
        data, arrived = _row(self.xs, now.batch, now.part), ring.get(carry.x, now.x)
        block = self.updates.block(now.round)
        x = jax.tree.map(lambda a, b: jnp.where(block == 0, a, b), data, arrived)
        read = carry.predicted if self.stage.optimiser.predicted else carry.weights
        weights, before = ring.get(read, now.weights), ring.get(carry.state, now.round)
        key = random_key_of(self.key, block, now.batch, now.part)
        reads = Reads(x, before, key, _row(self.labels, now.batch, now.part))

        def of(at: int) -> Callable[[], Any]:
            programs, role = self.programs[at], self.roles[at]

            def run():
                entries = [ring.zeros_like(entry) for entry in self.entries]
                if role.keeps:
                    y, state, pull = programs.linearise(weights, reads)
                    entries[at] = jax.tree.leaves(pull)
                else:
                    y, state = programs.forward(weights, reads)
                    entries[at] = (x, before)
                up, loss = (ring.zeros_like(self.x), y) if role.is_last else (y, self.no_loss)
                return up, loss, state, entries

            return run

        def idle():
            return (
                ring.zeros_like(self.x),
                self.no_loss,
                before,
                [ring.zeros_like(entry) for entry in self.entries],
            )

        branches = [idle, *(of(at) for at in range(len(self.roles)))]
        which = jnp.where(now.forward == 1, 1 + jnp.asarray(self.role_at)[block], 0)
        up, loss, state, entries = lax.switch(which, branches)
        kept = tuple(
            ring.put(each, jnp.where(which == 1 + at, now.kept, self._most_kept(at)), entry)
            for at, (each, entry) in enumerate(zip(carry.kept, entries, strict=True))
        )
        return self._advance(carry._replace(kept=kept), now, before, state), up, loss

    def _advance(
        self, carry: StageState, now: Instructions, before: PyTree, state: PyTree
    ) -> StageState:
        """Counters and keys move with every part, statistics once a batch, by the mean."""
        parts = self.table.parts
        if parts == 1:
            return carry._replace(state=ring.put(carry.state, now.round, state))
        ran = now.forward == 1
        add = lambda total, new: jnp.where(ran, total + new, total)  # noqa: E731
        so_far = ring.get(carry.states, now.round)
        total = jax.tree.map(lambda s, n: add(s, n) if is_float(s) else s, so_far, state)

        def moved(old, new, added):
            if not is_float(old):
                return new
            return jnp.where(ran & (now.last == 1), added / parts, old)

        def left(added):
            return jnp.where(ran & (now.last == 1), jnp.zeros_like(added), added)

        moved_state = jax.tree.map(moved, before, state, total)
        floats = jax.tree.map(lambda a: left(a) if is_float(a) else a, total)
        return carry._replace(
            state=ring.put(carry.state, now.round, moved_state),
            states=ring.put(carry.states, now.round, floats),
        )

    def _backward(self, carry: StageState, now: Instructions) -> tuple[StageState, PyTree, PyTree]:
        """The gradients of the weights, summed over parts, and what goes to the stage below."""
        weights = ring.get(carry.weights, now.back_weights)
        arrived = ring.get(carry.ct, now.ct)
        block = self.updates.block(now.back_round)
        key = random_key_of(self.key, block, now.back_batch, now.back_part)
        labels = _row(self.labels, now.back_batch, now.back_part)
        none = ring.zeros_like(self.own), ring.zeros_like(self.x)

        def of(at: int) -> list[Callable[[], Any]]:
            programs, role, pull = self.programs[at], self.roles[at], self.pulls[at]
            kept = lambda: ring.get(carry.kept[at], now.back_kept)  # noqa: E731
            ct = jnp.ones_like(self.no_loss) if role.is_last else arrived
            if pull is None:

                def replay():
                    x, state = kept()
                    return programs.replay(weights, Reads(x, state, key, labels), ct)

                return [replay] * 3
            structure: Any = jax.tree.structure(pull)
            linear = lambda: structure.unflatten(kept())  # noqa: E731
            return [
                lambda: programs.pull(linear(), ct),
                lambda: (none[0], programs.pull_input(linear(), ct)),
                lambda: (programs.pull_weights(linear(), ct), none[1]),
            ]

        divided = any(task.kind == "input_gradient" for task in self.table.tasks)
        kinds = 3 if divided else 1
        branches = [lambda: none]
        for at in range(len(self.roles)):
            branches += of(at)[:kinds]
        role = jnp.asarray(self.role_at)[block]
        which = jnp.where(now.backward == NOTHING, 0, kinds * role + now.backward)
        gradient, down = lax.switch(which, branches)
        if not self.keeps_gradient:
            # That of the round which is updated, if one is.
            return carry, [gradient] * self.rounds, down
        adds = (now.backward != NOTHING) & (now.backward != INPUT_GRADIENT)
        total = jax.tree.map(
            lambda s, g: jnp.where(adds, jnp.where(now.first == 1, g, s + g), s),
            ring.get(carry.gradient, now.back_round),
            gradient,
        )
        totals = ring.put(carry.gradient, now.back_round, total)
        each = [row(totals, at) for at in range(self.rounds)]
        return carry._replace(gradient=totals), each, down


def _row(tree: PyTree, batch: Array, part: Array) -> PyTree:
    """A part of a batch, of arrays (batches, parts, rows, ...)."""
    return ring.get(ring.get(tree, batch), part)


def _mean(tree: PyTree, axis: str) -> PyTree:
    """Over the devices of an axis; what is of no floats is the same on all, or anybody's."""
    return jax.tree.map(lambda a: lax.pmean(a, axis) if is_float(a) else a, tree)
