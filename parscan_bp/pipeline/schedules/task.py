"""One entry of a tick table: who does what when, on which batch, with which weights."""

from __future__ import annotations

import dataclasses
from typing import Literal

TaskKind = Literal["forward", "backward", "input_gradient", "weight_gradient", "update"]

LETTERS: dict[TaskKind, str] = {
    "forward": "F",
    "backward": "B",
    "input_gradient": "I",
    "weight_gradient": "W",
    "update": "U",
}
"""How a table prints each kind."""


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """What one block does with one batch, or with a part of it.

    With f_k the block, w its weights of ``version``, h its input and e the error gradient, the
    derivative of the loss by its output:

        forward           f_k(h; w), for the block above
        backward          (d f_k / d w)^T e and (d f_k / d h)^T e, the latter for the block below
        input_gradient    (d f_k / d h)^T e alone
        weight_gradient   (d f_k / d w)^T e alone
        update            one step of the block's optimiser with the mean gradient of the batch

    Attributes:
      kind: which of these.
      tick: when. Tasks of one tick may run at once, but where one needs the other.
      block: who, 0 the block that reads the data.
      batch: on which batch, counted from 0.
      part: on which part (micro-batch) of it; 0 for an update.
      version: with which weights of the block: those after so many of its updates. An update
        starts from them.

    Example:
      >>> from parscan_bp.pipeline import Task
      >>> print(Task("forward", tick=5, block=1, batch=4, version=2))
      F4@2
    """

    kind: TaskKind
    tick: int
    block: int
    batch: int
    part: int = 0
    version: int = 0

    def __str__(self) -> str:
        return f"{LETTERS[self.kind]}{self.batch}{f'.{self.part}' * bool(self.part)}@{self.version}"
