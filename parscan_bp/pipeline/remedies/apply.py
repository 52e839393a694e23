"""Remedies around an optimiser's update."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from parscan_bp.arguments import described
from parscan_bp.pipeline.remedies.base import Remedy
from parscan_bp.types import PyTree


def as_remedies(remedies: Any) -> tuple[Remedy, ...]:
    """A tuple of them.

    Raises:
      TypeError: if they are no sequence of remedies.
    """
    if not isinstance(remedies, Iterable):
        raise TypeError(
            f"remedies: got {described(remedies)}; a sequence of them is wanted, such as "
            "[ErrorFeedback()]"
        )
    remedies = tuple(remedies)
    for each in remedies:
        if not isinstance(each, Remedy):
            raise TypeError(
                f"remedies: got {described(each)}; a Remedy such as ErrorFeedback() is wanted"
            )
    return remedies


def update_with(
    remedies: Sequence[Remedy],
    delay: int,
    update: Callable[..., tuple[PyTree, PyTree]],
    gradient: PyTree,
    stored: Sequence[PyTree],
    params: PyTree,
    inner: PyTree,
    own: Sequence[PyTree],
) -> tuple[PyTree, PyTree, tuple[PyTree, ...]]:
    """A step of an optimiser, whose gradient and whose updates remedies change in their order.

    Args:
      remedies: for a stage that is late.
      delay: d, by how many steps.
      update: of the optimiser, (gradient, state, params) -> (updates, state).
      gradient: that is late.
      stored: what each remedy has `stored` of the params at which it was taken.
      params: now.
      inner: the optimiser's state.
      own: state of each remedy.

    Returns:
      Updates and the new states.
    """
    states = list(own)
    for k, remedy in enumerate(remedies):
        gradient, states[k] = remedy.correct(gradient, stored[k], params, states[k])
    updates, inner = update(gradient, inner, params)
    for k, remedy in enumerate(remedies):
        updates, states[k] = remedy.adjust(updates, states[k], delay)
    return updates, inner, tuple(states)
