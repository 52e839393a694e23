"""Steps that are too much work to be made again, or to be linearised, for what a sweep saves.

A sweep saves the overhead of the loop, an operation for each equation and step, and the sums of
parameter cotangents that are read and written in every step. It pays with a second evaluation
of the step. For a recurrent cell, some products with fixed weights and elementwise gates on values
about as large as the carry, that is a gain. For a layer of a transformer, the forces between all
pairs of many bodies, or a buffer of which one row is written, it is not.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from jax.extend.core import JaxprEqn

from parscan_bp.structure.arithmetic import carries_arithmetic_alone
from parscan_bp.structure.interpret import Interpreter
from parscan_bp.structure.jaxprs import is_inexact, open_jaxpr, shape_of, walk
from parscan_bp.structure.rules import ELEMENTWISE

# The limits were measured on a CPU, on some 60 programs that people write.
EQUATIONS = 200
"""Equations of a step up to which tracing it some more times is no matter."""
WIDENING = 4
"""Largest value of a step over its carry; an LSTM's joint gates have twice as many entries."""
FEW = 128
"""Entries up to which any value is small."""

_ARITHMETIC = frozenset(ELEMENTWISE) | {"bitcast_convert_type"}
_MOVES = frozenset(
    "slice dynamic_slice transpose broadcast_in_dim reshape squeeze stack unstack tile concatenate "
    "split rev pad stop_gradient reduce_sum reduce_max reduce_min".split()
)


@dataclasses.dataclass(frozen=True)
class Work:
    """What a step does besides what its Jacobian's structure says.

    Attributes:
      rows: most rows that are multiplied by fixed weights at a time; 0 without such products.
        A weight vector does not count: to XLA its product is a sum.
      heavy: why the step is too heavy for a sweep to gain anything, as it continues "the step ...";
        ``None`` if it is light.
      arithmetic: see `carries_arithmetic_alone`.
    """

    rows: int
    heavy: str | None
    arithmetic: bool = False


def work_of(jaxpr: Any, num_consts: int, num_carry: int) -> Work:
    """The work of a step.

    Args:
      jaxpr: the scan body, inputs ``[*consts, *carry, *x]``.
      num_consts: number of loop-invariant inputs.
      num_carry: number of carry leaves.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> step = lambda w, c: jnp.sin(c @ (w @ c))
      >>> work_of(jax.make_jaxpr(step)(jnp.ones((3, 3)), jnp.ones((3, 3))), 1, 1).heavy
      'multiplies two matrices that change from step to step'
    """
    opened = open_jaxpr(jaxpr)
    if sum(1 for _ in walk(opened)) > EQUATIONS:
        return Work(0, f"has more than {EQUATIONS} equations")
    carry = opened.invars[num_consts : num_consts + num_carry]
    counted = _Counted(sum(_size(v) for v in carry if is_inexact(v)))
    counted.run(opened, [k >= num_consts for k in range(len(opened.invars))])
    arithmetic = carries_arithmetic_alone(opened, num_consts, num_carry)
    return Work(counted.rows, counted.heavy(), arithmetic)


class _Counted(Interpreter[bool]):
    """True: the value changes from step to step."""

    derivative = False
    prune = False
    bottom = False

    def __init__(self, carry: int) -> None:
        super().__init__()
        self._carry = carry
        self._reason: str | None = None
        self._widest = 0
        self._made = 0
        self._moves = False
        self.rows = 0

    def heavy(self) -> str | None:
        if self._reason is not None:
            return self._reason
        if self._widest > max(WIDENING * self._carry, FEW):
            return f"makes values of {self._widest} entries from a carry of {self._carry}"
        if self._made < self._carry:
            return f"computes {self._made} entries and moves the rest of its carry"
        if self._moves and not self.rows and self._widest > FEW:
            return "moves the entries of a large carry about"
        return None

    def join(self, a: bool, b: bool, name: str) -> bool:
        return a or b

    def equation(self, eqn: JaxprEqn, ins: list[bool], live: list[bool]) -> list[bool]:
        if any(map(is_inexact, eqn.outvars)):
            name, size = eqn.primitive.name, max(map(_size, eqn.outvars))
            self._widest = max(self._widest, size)
            if name == "dot_general":
                self._product(eqn, ins, size)
            elif name in _ARITHMETIC:
                self._made += size
            elif name in _MOVES:
                self._moves = True
            elif not (name == "gather" and not ins[0]):  # rows of a table are light
                self._reason = f"contains {name}, which is slow to make again"
        return [True] * len(eqn.outvars)

    def after(self, eqn: JaxprEqn, ins: list[bool], outs: list[bool]) -> None:
        name = eqn.primitive.name
        if name in ("scan", "while", "cond"):
            self._reason = f"contains {name}, which is slow to make again"

    def _product(self, eqn: JaxprEqn, ins: list[bool], size: int) -> None:
        self._made += size
        if all(ins[:2]):
            self._reason = "multiplies two matrices that change from step to step"
            return
        (contracted, _), _ = eqn.params["dimension_numbers"]
        summed = math.prod(shape_of(eqn.invars[0])[axis] for axis in contracted)
        rows = _size(eqn.invars[ins.index(True)]) // max(summed, 1)
        if size > rows:
            self.rows = max(self.rows, rows)


def _size(atom: Any) -> int:
    return math.prod(shape_of(atom))
