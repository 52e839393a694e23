"""What each device of a 'stage' axis does, as one traced program that reads `Instructions`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from parscan_bp.originals import lax_scan
from parscan_bp.pipeline.blocks import Block
from parscan_bp.pipeline.executors import ring
from parscan_bp.pipeline.executors.instructions import INPUT_GRADIENT, NOTHING, Instructions, Rooms
from parscan_bp.pipeline.programs import (
    Loss,
    Optimiser,
    Reads,
    apply_updates,
    is_float,
    key_of,
    programs_of,
)
from parscan_bp.pipeline.schedules import Table
from parscan_bp.types import Array, PyTree


class StageState(NamedTuple):
    """What one stage holds between ticks.

    Attributes:
      weights: a ring of versions.
      optimiser_state, state: the block's own.
      states: sum of the states that the parts of a batch have left so far.
      gradient: sum over the parts of a batch so far; an empty tuple where it need not be kept.
      x, ct: rings of what neighbours have sent.
      kept: for each role a ring of what its backward passes need.
    """

    weights: PyTree
    optimiser_state: PyTree
    state: PyTree
    states: PyTree
    gradient: PyTree
    x: PyTree
    ct: PyTree
    kept: tuple[PyTree, ...]


class Role(NamedTuple):
    """A kind of stage: the last one has the loss; a linearisation may be kept or made again."""

    is_last: bool
    keeps: bool


@dataclasses.dataclass(frozen=True)
class StageProgram:
    """(plan, params, states, optimiser states, xs, labels, key) -> the first three, and losses.

    To be traced inside `jax.shard_map`, with arrays whose leading axis is that of the stages. What
    a stage has to do in a tick it does in branches of conditionals: no pass is made that the table
    does not have, and each is compiled by itself, by `Simulated`. What neighbours are to get goes
    through two permutations at the end of every tick.

    Attributes:
      block, optimiser, loss: as in `run`.
      table: the tick table.
      rooms: of its instructions.
      axis: of the stages.
      data: of the rows of a batch, or ``None``.
    """

    block: Block
    optimiser: Optimiser
    loss: Loss
    table: Table
    rooms: Rooms
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
        own = jax.tree.map(lambda a: a[0], (params, states, optimiser_states))
        run = _Run(self, here, key, xs, labels, own[0], own[1])
        plan = Instructions(*(field[:, 0] for field in plan))
        carry, losses = lax_scan(run.tick, run.start(own[2]), plan)
        newest = ring.get(carry.weights, jnp.asarray(self.rooms.newest)[here])
        state = carry.state
        if self.data is not None:
            # Each device has seen its own rows only.
            losses, state = _mean((losses, state), self.data)
        out = (newest, state, carry.optimiser_state, losses)
        return jax.tree.map(lambda a: a[None], out)


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
        state: PyTree,
    ):
        table = stage.table
        self.stage, self.table, self.here = stage, table, here
        self.key, self.xs, self.labels = key, xs, labels
        self.params, self.state = params, state
        roles = [Role(k == table.blocks - 1, table.keeps[k]) for k in range(table.blocks)]
        self.roles = sorted(set(roles))
        self.role_at = [self.roles.index(role) for role in roles]
        # Of one part, and without waiting for others, it is used in the tick in which it is made.
        self.keeps_gradient = table.parts > 1 or table.together
        self.role = jnp.asarray(self.role_at)[here]
        # The first stage makes the gradient of its input, too: all devices have one program.
        self.programs = [
            programs_of(stage.block, stage.loss if role.is_last else None, False)
            for role in self.roles
        ]
        self.x = jax.tree.map(lambda a: a[0, 0], xs)
        reads = Reads(self.x, state, key, jax.tree.map(lambda a: a[0, 0], labels))
        self.pulls = [
            jax.eval_shape(each.linearise, params, reads)[2] if role.keeps else None
            for role, each in zip(self.roles, self.programs, strict=True)
        ]
        loss = jax.eval_shape(self.programs[-1].forward, params, reads)[0]
        self.no_loss = ring.zeros_like(loss)
        # What a backward pass that linearises again needs beside its weights.
        self.entries = [
            (self.x, state) if pull is None else jax.tree.leaves(pull) for pull in self.pulls
        ]

    def start(self, optimiser_state: PyTree) -> StageState:
        rooms, parts = self.stage.rooms, self.table.parts
        return StageState(
            weights=ring.put(ring.empty(max(rooms.weights), self.params), 0, self.params),
            optimiser_state=optimiser_state,
            state=self.state,
            states=ring.zeros_like(self.state) if parts > 1 else (),
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
        carry = self._update(carry, now, gradient)
        x, ct = self._exchange(up, down)
        arrived = {"x": ring.put(carry.x, now.x_to, x), "ct": ring.put(carry.ct, now.ct_to, ct)}
        return carry._replace(**arrived), loss

    def _exchange(self, up: PyTree, down: PyTree) -> tuple[PyTree, PyTree]:
        """What both neighbours have made in this tick."""
        axis, last = self.stage.axis, self.table.blocks - 1
        above = [(k, k + 1) for k in range(last)]
        below = [(k + 1, k) for k in range(last)]
        return lax.ppermute(up, axis, above), lax.ppermute(down, axis, below)

    def _forward(self, carry: StageState, now: Instructions) -> tuple[StageState, PyTree, Array]:
        """The pass, what goes to the stage above, and the loss at the last stage."""
        row = lambda tree: _row(tree, now.batch, now.part)  # noqa: E731
        data, arrived = row(self.xs), ring.get(carry.x, now.x)
        x = jax.tree.map(lambda a, b: jnp.where(self.here == 0, a, b), data, arrived)
        weights = ring.get(carry.weights, now.weights)
        key = key_of(self.key, self.here, now.batch, now.part)
        reads = Reads(x, carry.state, key, row(self.labels))

        def of(at: int) -> Callable[[], Any]:
            programs, role = self.programs[at], self.roles[at]

            def run():
                entries = [ring.zeros_like(entry) for entry in self.entries]
                if role.keeps:
                    y, state, pull = programs.linearise(weights, reads)
                    entries[at] = jax.tree.leaves(pull)
                else:
                    y, state = programs.forward(weights, reads)
                    entries[at] = (x, carry.state)
                up, loss = (ring.zeros_like(self.x), y) if role.is_last else (y, self.no_loss)
                return up, loss, state, entries

            return run

        def idle():
            return (
                ring.zeros_like(self.x),
                self.no_loss,
                carry.state,
                [ring.zeros_like(entry) for entry in self.entries],
            )

        branches = [idle, *(of(at) for at in range(len(self.roles)))]
        which = jnp.where(now.forward == 1, 1 + self.role, 0)
        up, loss, state, entries = lax.switch(which, branches)
        kept = tuple(
            ring.put(each, jnp.where(self.role == at, now.kept, self._most_kept(at)), entry)
            for at, (each, entry) in enumerate(zip(carry.kept, entries, strict=True))
        )
        return self._advance(carry._replace(kept=kept), now, state), up, loss

    def _advance(self, carry: StageState, now: Instructions, state: PyTree) -> StageState:
        """Counters and keys move with every part, statistics once a batch, by the mean."""
        parts = self.table.parts
        if parts == 1:
            return carry._replace(state=state)
        ran = now.forward == 1
        add = lambda total, new: jnp.where(ran, total + new, total)  # noqa: E731
        total = jax.tree.map(lambda s, n: add(s, n) if is_float(s) else s, carry.states, state)

        def moved(old, new, added):
            if not is_float(old):
                return new
            return jnp.where(ran & (now.last == 1), added / parts, old)

        def left(added):
            return jnp.where(ran & (now.last == 1), jnp.zeros_like(added), added)

        moved_state = jax.tree.map(moved, carry.state, state, total)
        floats = jax.tree.map(lambda a: left(a) if is_float(a) else a, total)
        return carry._replace(state=moved_state, states=floats)

    def _backward(self, carry: StageState, now: Instructions) -> tuple[StageState, PyTree, PyTree]:
        """The gradient of the weights, summed over parts, and what goes to the stage below."""
        weights = ring.get(carry.weights, now.back_weights)
        arrived = ring.get(carry.ct, now.ct)
        key = key_of(self.key, self.here, now.back_batch, now.back_part)
        labels = _row(self.labels, now.back_batch, now.back_part)
        none = ring.zeros_like(self.params), ring.zeros_like(self.x)

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
        which = jnp.where(now.backward == NOTHING, 0, kinds * self.role + now.backward)
        gradient, down = lax.switch(which, branches)
        if not self.keeps_gradient:
            return carry, gradient, down
        adds = (now.backward != NOTHING) & (now.backward != INPUT_GRADIENT)
        total = jax.tree.map(
            lambda s, g: jnp.where(adds, jnp.where(now.first == 1, g, s + g), s),
            carry.gradient,
            gradient,
        )
        return carry._replace(gradient=total), total, down

    def _update(self, carry: StageState, now: Instructions, gradient: PyTree) -> StageState:
        old = ring.get(carry.weights, now.old)

        def mean():
            whole = gradient if self.stage.data is None else lax.pmean(gradient, self.stage.data)
            return jax.tree.map(lambda g: g / jnp.asarray(self.table.parts, g.dtype), whole)

        # Each in a branch of its own, as in programs of their own: in one, XLA may round a product
        # and a sum at once.
        whole = lax.cond(now.update == 1, mean, lambda: gradient)

        def step():
            update = self._of_all if self.table.together else self.stage.optimiser.update
            return update(whole, carry.optimiser_state, old)

        def idle():
            return ring.zeros_like(jax.eval_shape(step)[0]), carry.optimiser_state

        updates, state = lax.cond(now.update == 1, step, idle)
        new = jax.tree.map(
            lambda a, b: jnp.where(now.update == 1, a, b),
            apply_updates(old, updates),
            ring.get(carry.weights, now.new),
        )
        weights = ring.put(carry.weights, now.new, new)
        return carry._replace(weights=weights, optimiser_state=state)

    def _of_all(self, gradient: PyTree, state: PyTree, weights: PyTree) -> tuple[PyTree, PyTree]:
        """This stage's updates out of one step for all, which every stage makes."""
        every = lax.all_gather((gradient, weights), self.stage.axis)
        each = [jax.tree.map(lambda a, k=k: a[k], every) for k in range(self.table.blocks)]
        gradients, all_weights = map(list, zip(*each, strict=True))
        updates, state = self.stage.optimiser.update(gradients, state, all_weights)
        return jax.tree.map(lambda *own: jnp.stack(own)[self.here], *updates), state


def _row(tree: PyTree, batch: Array, part: Array) -> PyTree:
    """A part of a batch, of arrays (batches, parts, rows, ...)."""
    return ring.get(ring.get(tree, batch), part)


def _mean(tree: PyTree, axis: str) -> PyTree:
    """Over the devices of an axis; what is of no floats is the same on all, or anybody's."""
    return jax.tree.map(lambda a: lax.pmean(a, axis) if is_float(a) else a, tree)
