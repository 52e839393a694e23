"""Correction rounds over the devices of a line: what enters each of them, by vectors alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from parscan_bp.devices import DeviceOrder, in_turn
from parscan_bp.primitives.mapping import largest_of_mapped
from parscan_bp.report import Rounds
from parscan_bp.solvers.collect import default_chunk, in_chunks
from parscan_bp.solvers.seams import are_finite, cancels, matters, select
from parscan_bp.solvers.stretches import sweep_stretch
from parscan_bp.system import System, block_shape
from parscan_bp.trees import add, nbytes
from parscan_bp.types import Array, PyTree

SETTLED, PENDING, UNUSABLE = range(3)
"""What a device says of a round; the largest of all decides."""


class _Round(NamedTuple):
    """The state of the rounds.

    Attributes:
      number: how many there were.
      says: what the devices say of the next one, the same on all.
      entering: what enters this device, so far.
      correction: the last part of it, of which nothing was handed on yet.
    """

    number: Array
    says: Array
    entering: PyTree
    correction: PyTree


def entering_by_rounds(
    line: DeviceOrder, system: System, state: PyTree
) -> tuple[PyTree, Array, Array]:
    """What enters each device, ``state`` included, by sweeps side by side.

    Every device sweeps its own steps from its ``state``, and hands what leaves it to the next one;
    then, in rounds, what each makes of the last correction that arrived. Device p is right after p
    rounds, and all are after P - 1; a correction that changes no stored number ends them.

    Args:
      line: the devices.
      system: this device's steps.
      state: what enters it, but for what the device before it hands on.

    Returns:
      What enters, the number of rounds, int32, and whether what was handed on is of use: not where
      it is not finite, or where large numbers cancelled.
    """

    def arrive(number, entering, leaving) -> _Round:
        arrived = line.shift(leaving)
        entered = add(entering, arrived)
        counts = matters(arrived, entering, 0)
        lost = cancels(_rows(entering), _rows(entered), 0) & counts
        usable = are_finite((arrived, entered), 0) & ~lost
        says = jnp.where(usable, jnp.where(counts, PENDING, SETTLED), UNUSABLE)
        says = lax.pmax(says.astype(jnp.int32), line.axis)
        correction = select(counts, arrived, jax.tree.map(jnp.zeros_like, arrived))
        return _Round(number + (says > SETTLED), says, add(entering, correction), correction)

    def visit(round_: _Round) -> _Round:
        # An entry of a mapped axis that is done stays as it is, to the last bit.
        leaving = leaving_state(system, round_.correction, homogeneous=True)
        after = arrive(round_.number, round_.entering, leaving)
        return select(round_.says == PENDING, after, round_)

    def wanted(round_: _Round) -> Array:
        return largest_of_mapped((round_.says == PENDING).astype(jnp.int32)) > 0

    first = arrive(jnp.zeros((), jnp.int32), state, leaving_state(system, state))
    last = lax.while_loop(wanted, visit, first)
    return last.entering, last.number, last.says == SETTLED


def solved_in_rounds(
    line: DeviceOrder, system: System, state: PyTree, own: Callable[[PyTree], PyTree]
) -> tuple[PyTree, Rounds]:
    """What ``own`` makes of what enters each device, found in rounds, or else in turns.

    Args:
      line, system, state: see `entering_by_rounds`.
      own: solves for a device's own steps, from the state that enters them.
    """
    entering, number, usable = entering_by_rounds(line, system, state)
    # One condition for all entries of a mapped axis: nothing runs that none of them needs.
    lost = largest_of_mapped((~usable).astype(jnp.int32)) > 0
    made = own(entering)
    turns = lambda: in_turn(line, own, state, add)  # noqa: E731
    made = select(usable, made, lax.cond(lost, turns, lambda: made))
    return made, Rounds(number, fell_back=~usable)


def leaving_state(system: System, state: PyTree, *, homogeneous: bool = False) -> PyTree:
    """The state that leaves all steps of a system, of right-hand side zero if homogeneous."""
    n = system.length
    leaves, _ = block_shape(system, 1).operator.unstack()

    def visit(state, start, size):
        return sweep_stretch(system, state, start, size, homogeneous=homogeneous)[0]

    return in_chunks(n, default_chunk(n, n * nbytes(leaves)), system.backward, visit, state)


def _rows(tree: PyTree) -> PyTree:
    """Each array as a stretch of one step, for `cancels`."""
    return jax.tree.map(lambda a: a[None], tree)
