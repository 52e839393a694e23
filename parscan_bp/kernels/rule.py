"""The elementwise half of a recurrent step, forward or backward.

`recurrence` runs it on chip and the reference in plain JAX, on lists of arrays of one shape:

    products = weights times the operands of the step before
    out, state = step(v, products, state),   operands = out[:rule.operands]

Forward, the one operand is h and there is a product per gate; backward, there is an operand per
gate, the cotangent of its pre-activation, and their products add up to the cotangent of h.

A rule with sums is that of an adjoint. Its step returns a third, the vector h_t that was multiplied
by the weights in the step before: what its operands have to be multiplied with for the cotangents
of the weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from parscan_bp.types import Array

Arrays = Sequence[Array]


@dataclasses.dataclass(frozen=True)
class Rule:
    """One direction of a cell.

    Attributes:
      name: of the kernel.
      step: ``(v, products, state) -> (out, state)``, or ``(out, state, h)`` with sums; hashable.
      operands: outputs, the first ones, that are multiplied in the next step.
      products: sums of products that come back.
      inputs: vectors that arrive with each step.
      outputs: vectors that leave with each step.
      states: vectors that only the next step sees.
      sums: outputs, the first ones and at least the operands, that are summed over all steps.
    """

    name: str
    step: Callable[[Arrays, Arrays, Arrays], tuple[Any, ...]]
    operands: int
    products: int
    inputs: int
    outputs: int
    states: int
    sums: int = 0

    def __post_init__(self) -> None:
        """The vectors that leave with sums lie where the first ones came from, a place each."""
        if self.operands > self.outputs:
            raise ValueError(
                f"operands: got {self.operands}; of {self.outputs} outputs, that many at most"
            )
        if self.sums and not self.operands <= self.sums <= self.outputs:
            raise ValueError(
                f"sums: got {self.sums}; 0 is wanted, or at least the {self.operands} operands "
                f"and at most the {self.outputs} outputs"
            )

    @property
    def starts(self) -> int:
        """Vectors there are before the first step: out, state and, with sums, h."""
        return self.outputs + self.states + bool(self.sums)
