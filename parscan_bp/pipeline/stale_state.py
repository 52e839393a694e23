"""What `stale` keeps from step to step."""

from __future__ import annotations

from typing import Any, NamedTuple

from parscan_bp.types import PyTree


class Queued(NamedTuple):
    """What waits in a queue; of leaves (d, ...) in a state, of one entry when it comes out.

    Attributes:
      gradient: the gradient.
      stored: what each remedy keeps with it.
    """

    gradient: PyTree
    stored: tuple[PyTree, ...]


class Stage(NamedTuple):
    """One stage: parameters whose gradients are late by the same number of steps.

    Attributes:
      count: gradients that have come, below d while the queue fills, then in d .. 2 d - 1; the
        next one goes to ``count % d``. An empty tuple where the delay is 0.
      queue: a ring of the last d gradients, `Queued`; an empty tuple where the delay is 0.
      inner: the optimiser's state of this stage.
      remedies: that of each remedy.
    """

    count: Any
    queue: Any
    inner: PyTree
    remedies: tuple[PyTree, ...]


class StaleState(NamedTuple):
    """State of `stale`.

    Attributes:
      stages: a `Stage` in the place of each delay.
    """

    stages: PyTree
