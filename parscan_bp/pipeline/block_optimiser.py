"""An optimiser for each block, which is told how late the block is."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from parscan_bp.arguments import described
from parscan_bp.pipeline.momentum import Transformation
from parscan_bp.pipeline.programs import Optimiser
from parscan_bp.pipeline.remedies import Remedy
from parscan_bp.pipeline.remedies.apply import update_with
from parscan_bp.pipeline.schedules import Schedule
from parscan_bp.types import PyTree


class RemediedState(NamedTuple):
    """State of a block that is late.

    Attributes:
      inner: of the optimiser.
      remedies: of each remedy.
    """

    inner: PyTree
    remedies: tuple[PyTree, ...]


class BlockOptimiser(NamedTuple):
    """How a block is updated, and where its gradients are taken.

    Attributes:
      own: a pair (init, update).
      read: whether ``own.update`` is given, after the params, those that the forward pass read.
      predicted: (params, state) -> params that the next forward pass reads; ``None`` if the same.
    """

    own: Optimiser
    read: bool = False
    predicted: Callable[[PyTree, PyTree], PyTree] | None = None


def block_optimisers(
    optimiser: Optimiser, remedies: Sequence[Remedy], schedule: Schedule, blocks: int
) -> list[BlockOptimiser]:
    """Of each block; the optimiser itself where nothing is late.

    A block is as late as its forward pass, in a full pipeline: m_k of `DSP`.

    Raises:
      TypeError: if a remedy has no hash.
      NotImplementedError: if a prediction would have to be made again for a late backward pass.

    Example:
      >>> import optax
      >>> import parscan_bp as pb
      >>> from parscan_bp.pipeline.block_optimiser import block_optimisers
      >>> made = block_optimisers(
      ...     optax.sgd(0.1), (pb.pipeline.WeightPrediction(),),
      ...     pb.pipeline.DSP((1, 1, 0), (4, 2, 0)), 3)
      >>> [own.predicted is not None for own in made]
      [True, True, False]
    """
    late, keeps = schedule.staleness(blocks), schedule.keeps(blocks)
    made = [_of(optimiser, remedies, each.forward) for each in late]
    for k, own in enumerate(made):
        if own.predicted and late[k].backward and not keeps[k]:
            raise NotImplementedError(
                f"remedies: {schedule} linearises block {k} again, {late[k].backward} updates "
                "late; predictions are made for forward passes alone. Wanted is a schedule that "
                "keeps the linearisation, or linearises again with the newest weights, as DSP does"
            )
    return made


def _of(optimiser: Optimiser, remedies: Sequence[Remedy], delay: int) -> BlockOptimiser:
    if not remedies or delay == 0:
        return BlockOptimiser(optimiser)
    try:
        return _remedied(optimiser, tuple(remedies), delay)
    except TypeError as error:
        raise TypeError(
            f"remedies: got {described(remedies)}, which have no hash; such that have are wanted, "
            f"programs are compiled once for them: {error}"
        ) from None


# Programs are compiled once for an optimiser: the same remedies have to make the same one.
@functools.lru_cache(maxsize=64)
def _remedied(optimiser: Optimiser, remedies: tuple[Remedy, ...], delay: int) -> BlockOptimiser:
    def init(params: PyTree) -> RemediedState:
        own = tuple(remedy.init(delay, params) for remedy in remedies)
        return RemediedState(optimiser.init(params), own)

    def update(
        gradient: PyTree, state: RemediedState, params: PyTree, read: PyTree = None
    ) -> tuple[PyTree, RemediedState]:
        read = params if read is None else read
        stored = [remedy.stored(read) for remedy in remedies]
        updates, *new = update_with(
            remedies, delay, optimiser.update, gradient, stored, params, *state
        )
        return updates, RemediedState(*new)

    def predicted(params: PyTree, state: RemediedState) -> PyTree:
        for remedy, own in zip(remedies, state.remedies, strict=True):
            params = remedy.predicted(params, own, delay)
        return params

    predicts = _override(remedies, "predicted")
    pair = Transformation(init, update)
    return BlockOptimiser(pair, _override(remedies, "stored"), predicted if predicts else None)


def _override(remedies: Sequence[Remedy], name: str) -> bool:
    return any(getattr(type(each), name) is not getattr(Remedy, name) for each in remedies)
