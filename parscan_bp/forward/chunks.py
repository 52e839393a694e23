"""`Chunks`: stretches of a recurrence side by side, stepped again until no seam moves."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from parscan_bp.arguments import set_ints
from parscan_bp.forward.base import (
    Carry,
    Forward,
    Recurrence,
    Trajectory,
    side_by_side,
    steps_to_forget,
)
from parscan_bp.jaxprs.replay import varying_with
from parscan_bp.originals import lax_scan
from parscan_bp.trees import stretch, write_stretch
from parscan_bp.types import Array, PyTree

BLOCK = 16
"""Steps between two looks at whether a chunk coincides with what it was."""

SHORTEST, MOST = 256, 64
"""Steps of a chunk, at least, and the number of chunks, at most, where the caller named none."""


@dataclasses.dataclass(frozen=True, repr=False)
class Chunks(Forward):
    """Evaluates a recurrence by chunks that advance together, as one batch.

    At first every chunk but the first begins with x_0. Then come rounds: each chunk begins again
    with the end of the one before it, and is stepped only until its states coincide with those
    that it had, to the tolerance or to 4 roundings of 1 + |x|, whichever is more. Where the
    recurrence forgets, that is after a few steps; nothing is assumed about how many. Chunk k is
    exact after k rounds, whatever the recurrence does. Over devices, each has its own chunks.

    Source: overlapped chunks, the forward counterpart of Naumov (2017), section 2.1; the rounds
    are those of parareal with the identity for its coarse propagator.

    Args:
      chunks: how many, of each device if steps are divided over them; ``None`` is one for every 256
        steps, at most 64.
      rounds: at most so many; if chunks still move then, the result is not converged.

    Raises:
      TypeError, ValueError: if they are no integers of at least 1.

    Example:
      >>> import jax.numpy as jnp, parscan_bp as pb
      >>> step = lambda h, x: (jnp.tanh(0.5 * h + x), h)
      >>> h, _, report = pb.scan(step, 0.0, jnp.ones(99), forward=pb.Chunks(4), report=True)
      >>> round(float(h), 4), int(report.forward.iterations), bool(report.fell_back)
      (0.8952, 1, False)
    """

    chunks: int | None = None
    _: dataclasses.KW_ONLY
    rounds: int = 2

    over_devices: ClassVar = True

    def __post_init__(self):
        super().__post_init__()
        set_ints(self, ("chunks",), chunks=1, rounds=1)

    def evaluate(self, recurrence, tolerance):
        cut = _Cut.of(recurrence.length, self.chunks)
        inputs = cut.apart(recurrence.inputs)
        step = _step_of_all(recurrence, cut)
        first = _swept(recurrence, step, inputs, cut)
        places = 1 if recurrence.line is None else recurrence.line.size
        limit = min(self.rounds, places * cut.chunks - 1)

        def more(at: _Rounds):
            return at.goes_on & (at.rounds < limit)

        def one_round(at: _Rounds):
            states = _stepped_again(step, inputs, cut, at, tolerance)
            entering = _seams(recurrence, states)
            live = _differ(entering, at.entering, tolerance)
            goes_on = recurrence.on_any(jnp.any(live))
            return _Rounds(states, entering, live, goes_on, at.rounds + 1)

        made = lax.while_loop(more, one_round, first)
        return Trajectory(cut.joined(made.states), made.rounds, ~made.goes_on)

    def expected(self, length, exponent, tolerance):
        """A chunk is right as soon as it has forgotten where it began: in the first round, if that
        takes no more than half of its steps, as it forgets faster here and more slowly there."""
        cut = _Cut.of(length, self.chunks)
        needed = 2 * steps_to_forget(exponent, tolerance) / cut.steps
        rounds = cut.chunks - 1 if needed > cut.chunks - 1 else math.ceil(needed)
        return rounds if rounds <= self.rounds else None


class _Rounds(NamedTuple):
    """The chunks between two rounds.

    Attributes:
      states: all states, (steps of a chunk, chunks, ...).
      entering: the carry that each chunk has to begin with, (chunks, ...).
      live: for each chunk, whether it began with another one.
      goes_on: whether any did, of any device.
      rounds: how many were made.
    """

    states: Carry
    entering: Carry
    live: Array
    goes_on: Array
    rounds: Array


@dataclasses.dataclass(frozen=True)
class _Cut:
    """How a recurrence is cut.

    Attributes:
      length: of the recurrence.
      chunks: how many chunks.
      steps: of each; of the last, those beyond the length are none.
      block: steps that are made without looking, a divisor of ``steps``.
    """

    length: int
    chunks: int
    steps: int
    block: int

    @staticmethod
    def of(length: int, chunks: int | None) -> _Cut:
        wanted = max(1, min(MOST, length // SHORTEST)) if chunks is None else min(chunks, length)
        steps = -(-length // wanted)
        block = min(BLOCK, steps)
        steps = -(-steps // block) * block
        return _Cut(length, -(-length // steps), steps, block)

    @property
    def missing(self) -> int:
        return self.chunks * self.steps - self.length

    def apart(self, inputs: PyTree) -> PyTree:
        """The inputs (steps, chunks, ...), and whether each step is one."""

        def leaf(a):
            if self.missing:
                a = jnp.concatenate([a, jnp.broadcast_to(a[-1:], (self.missing, *a.shape[1:]))])
            return jnp.swapaxes(a.reshape(self.chunks, self.steps, *a.shape[1:]), 0, 1)

        among = jnp.arange(self.chunks * self.steps).reshape(self.chunks, self.steps).T
        return jax.tree.map(leaf, inputs), among < self.length if self.missing else None

    def joined(self, states: Carry) -> Carry:
        """The states (steps, chunks, ...) along time."""

        def leaf(a):
            a = jnp.swapaxes(a, 0, 1).reshape(self.chunks * self.steps, *a.shape[2:])
            return a[: self.length]

        return jax.tree.map(leaf, states)


def _step_of_all(recurrence: Recurrence, cut: _Cut):
    """One step of all chunks; steps beyond the end leave the carry as it is."""
    f = side_by_side(recurrence.step)

    def step(carry, values):
        inputs, whole = values
        new = f(carry, inputs)
        if whole is not None:
            new = _where(whole, new, carry)
        return new, new

    return step


def _swept(recurrence: Recurrence, step, inputs, cut: _Cut) -> _Rounds:
    """All chunks from x_0, and what they have to begin with instead."""
    start = jax.tree.map(lambda a: jnp.broadcast_to(a, (cut.chunks, *a.shape)), recurrence.init)
    _, states = lax_scan(step, start, inputs, length=cut.steps)
    live, none = jnp.arange(cut.chunks) > 0, jnp.zeros((), jnp.int32)
    if recurrence.line is not None:
        live |= ~recurrence.line.is_at(0)
    live, none = varying_with((live, none), recurrence.init)
    goes_on = recurrence.on_any(jnp.any(live))
    return _Rounds(states, _seams(recurrence, states), live, goes_on, none)


def _stepped_again(step, inputs: PyTree, cut: _Cut, at: _Rounds, tolerance: float) -> Carry:
    """The states of all chunks, those that are live stepped until they coincide again.

    Blocks, not steps, are what the loop writes: under `jax.vmap` JAX selects all of its values at
    every turn.
    """

    def more(values):
        start, _, _, live = values
        return (start < cut.steps) & jnp.any(live)

    def block(values):
        start, carry, states, live = values
        old = stretch(states, start, cut.block)
        _, new = lax_scan(step, carry, stretch(inputs, start, cut.block), length=cut.block)
        # Chunks at rest keep their states, bit for bit.
        new = _where(live, new, old, axis=1)
        last, was = (jax.tree.map(lambda a: a[-1], tree) for tree in (new, old))
        live = live & _differ(last, was, tolerance)
        return start + cut.block, last, write_stretch(states, new, start), live

    begin = jnp.zeros_like(at.rounds), at.entering, at.states, at.live
    return lax.while_loop(more, block, begin)[2]


def _seams(recurrence: Recurrence, states: Carry) -> Carry:
    """The carry that enters each chunk: the first one, and the ends of all but the last."""
    first = recurrence.first(jax.tree.map(lambda a: a[-1, -1], states))
    shift = lambda first, a: jnp.concatenate([jnp.expand_dims(first, 0), a[-1, :-1]])  # noqa: E731
    return jax.tree.map(shift, first, states)


def _differ(new: Carry, old: Carry, tolerance: float) -> Array:
    """For each chunk, whether its two carries do not coincide; what is not finite never does."""

    def leaf(a, b):
        gap, least = jnp.abs(a - b), 4 * float(jnp.finfo(a.dtype).eps)
        same = (gap <= max(tolerance, least) * (1 + jnp.abs(b))) & (gap < jnp.inf)
        return ~jnp.all(same, axis=tuple(range(1, a.ndim)))

    return functools.reduce(operator.or_, jax.tree.leaves(jax.tree.map(leaf, new, old)))


def _where(mask: Array, yes: PyTree, no: PyTree, axis: int = 0) -> PyTree:
    """Chosen by chunk, the chunks being along ``axis``."""

    def leaf(a, b):
        shape = [1] * a.ndim
        shape[axis] = mask.shape[0]
        return jnp.where(mask.reshape(shape), a, b)

    return jax.tree.map(leaf, yes, no)
