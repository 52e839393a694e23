"""One optimiser for blocks that have different ones, as a program for all stages needs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from parscan_bp.pipeline.block_optimiser import BlockOptimiser
from parscan_bp.pipeline.momentum import Transformation
from parscan_bp.types import Array, PyTree


class UnitedState(NamedTuple):
    """Of the same shapes for all blocks.

    Attributes:
      which: index of the block's own optimiser.
      states: of all optimisers that some block has; those that are not its own are never used.
    """

    which: Array
    states: tuple[PyTree, ...]


class United:
    """Optimisers of blocks as one, which does in branches what a block's own would do.

    A stage has room for the states of all that differ: of `DSP` with remedies, of each delay.

    Args:
      each: of every block.

    Attributes:
      optimiser: the one for all.
    """

    def __init__(self, each: Sequence[BlockOptimiser]):
        self._different = tuple(dict.fromkeys(each))
        self._which = [self._different.index(own) for own in each]
        self._alone = len(self._different) == 1
        self.optimiser = self._different[0] if self._alone else _united(self._different)

    def states(self, own: Sequence[PyTree], params: Sequence[PyTree]) -> list[PyTree]:
        """Of the one, from those of the blocks."""
        return list(own) if self._alone else list(map(self._state, self._which, own, params))

    def _state(self, which: int, own: PyTree, params: PyTree) -> UnitedState:
        fresh = [each.own.init(params) for each in self._different]
        fresh[which] = own
        return UnitedState(jnp.asarray(which), tuple(fresh))

    def own(self, states: Sequence[PyTree]) -> list[PyTree]:
        """Those of the blocks, from those of the one."""
        if self._alone:
            return list(states)
        return [state.states[at] for at, state in zip(self._which, states, strict=True)]


@functools.lru_cache(maxsize=16)
def _united(each: tuple[BlockOptimiser, ...]) -> BlockOptimiser:
    def init(params: PyTree) -> Any:
        raise AssertionError(f"States of {len(each)} optimisers are those of blocks, {params}.")

    def stepped(at: int) -> Callable[..., tuple[PyTree, tuple[PyTree, ...]]]:
        def step(gradient: PyTree, states: tuple[PyTree, ...], params: PyTree, *read: PyTree):
            own = each[at]
            given = read if own.read else ()
            updates, new = own.own.update(gradient, states[at], params, *given)
            return updates, (*states[:at], new, *states[at + 1 :])

        return step

    def update(gradient: PyTree, state: UnitedState, params: PyTree, *read: PyTree):
        steps = [stepped(at) for at in range(len(each))]
        updates, states = lax.switch(state.which, steps, gradient, state.states, params, *read)
        return updates, UnitedState(state.which, states)

    def foreseen(at: int) -> Callable[[PyTree, tuple[PyTree, ...]], PyTree]:
        own = each[at].predicted
        return lambda params, states: params if own is None else own(params, states[at])

    def predicted(params: PyTree, state: UnitedState) -> PyTree:
        return lax.switch(
            state.which, [foreseen(at) for at in range(len(each))], params, state.states
        )

    predicts = any(own.predicted for own in each)
    read = any(own.read for own in each)
    return BlockOptimiser(Transformation(init, update), read, predicted if predicts else None)
