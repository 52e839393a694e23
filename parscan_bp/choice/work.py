"""Steps that are too much work to be made again, or to be linearised, for what a sweep saves.

A sweep saves the overhead of the loop, an operation for each equation and step, and the sums of
parameter cotangents that are read and written in every step. It pays with a second evaluation
of the step. For a recurrent cell, some products with fixed weights and elementwise gates on values
about as large as the carry, that is a gain. For a layer of a transformer, the forces between all
pairs of many bodies, or a buffer of which one row is written, it is not. The second evaluation is
of many steps at once: small matrices, with little work around a library's call, gain most by it.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import math
import operator
from typing import Any

from jax.extend.core import JaxprEqn

from parscan_bp.choice.limits import cpu_limits
from parscan_bp.jaxprs.hijax import kind_of
from parscan_bp.jaxprs.interpret import Interpreter
from parscan_bp.jaxprs.primitive_kinds import (
    CONTROL_FLOW,
    ELEMENTWISE,
    MOVES,
    REDUCTIONS,
    RESHAPES,
    ROW_READS,
    ROW_WRITES,
    SOLVES,
    TAKES,
)
from parscan_bp.jaxprs.read import is_inexact, open_jaxpr, shape_of

_COMPUTES = ELEMENTWISE | {"bitcast_convert_type"}
_LIGHT = MOVES | REDUCTIONS | {"pad", "stop_gradient"}


@dataclasses.dataclass(frozen=True)
class Work:
    """What a step does besides what its Jacobian's structure says.

    Attributes:
      rows: most rows that are multiplied by fixed weights at a time; 0 without such products.
        A weight vector does not count: to XLA its product is a sum.
      heavy: why the step is too heavy for a sweep to gain anything, as it continues "the step ...";
        ``None`` if it is light.
      parts: most parts into which a product with fixed weights is taken: the gates of a cell.
      calls: what of it XLA calls in a library, so that it makes no single kernel of the loop.
    """

    rows: int
    heavy: str | None
    parts: int = 0
    calls: str | None = None


def work_of(jaxpr: Any, num_consts: int, num_carry: int) -> Work:
    """The work of a step.

    Args:
      jaxpr: the scan body, inputs ``[*consts, *carry, *x]``.
      num_consts: number of loop-invariant inputs.
      num_carry: number of carry leaves.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> step = lambda w, c: jnp.sin(c @ (w @ c))
      >>> work_of(jax.make_jaxpr(step)(jnp.ones((9, 9)), jnp.ones((9, 9))), 1, 1).heavy
      'multiplies two matrices that change from step to step'
    """
    opened = open_jaxpr(jaxpr)
    carry = opened.invars[num_consts : num_consts + num_carry]
    counted = _Counted(sum(_size(v) for v in carry if is_inexact(v)))
    others = len(opened.invars) - num_consts - num_carry
    ins = [_Is(0)] * num_consts + [_Is.CARRIED] * num_carry + [_Is.GIVEN] * others
    counted.run(opened, ins)
    return Work(counted.rows, counted.heavy(), counted.parts(), counted.calls)


class _Is(enum.Flag):
    """What is known of a value that changes from step to step."""

    GIVEN = enum.auto()  # depends on the inputs
    CARRIED = enum.auto()  # depends on the carry
    PRODUCT = enum.auto()  # a product with fixed weights, and what was done to its entries


class _Counted(Interpreter[_Is]):
    """Goes through a step and counts."""

    derivative = False
    prune = False
    bottom = _Is(0)

    def __init__(self, carry: int) -> None:
        super().__init__()
        self._carry = carry
        self._reason: str | None = None
        self._widest = 0
        self._made = 0
        self._moves = False
        self._parts: collections.Counter[Any] = collections.Counter()
        self._indexed: collections.Counter[str] = collections.Counter()
        self.rows = 0
        self.calls: str | None = None

    def parts(self) -> int:
        return max(self._parts.values(), default=0)

    def heavy(self) -> str | None:
        if self._reason is not None:
            return self._reason
        if self._widest > max(cpu_limits().widening * self._carry, cpu_limits().narrow):
            return f"makes values of {self._widest} entries from a carry of {self._carry}"
        for name, size in self._indexed.items():
            if size * cpu_limits().indexed > self._made:
                return _slow(name)
        if self._made < self._carry:
            return f"computes {self._made} entries and moves the rest of its carry"
        if self._moves and not self.rows and self._widest > cpu_limits().narrow:
            return "moves the entries of a large carry about"
        return None

    def join(self, a: _Is, b: _Is, name: str) -> _Is:
        return a | b

    def equation(self, eqn: JaxprEqn, ins: list[_Is], live: list[bool]) -> list[_Is]:
        name, out = kind_of(eqn), functools.reduce(operator.or_, ins)
        if name in TAKES and _Is.PRODUCT in ins[0]:
            self._parts[eqn.invars[0]] += len(eqn.outvars)
        if name == "dot_general":
            out |= _Is.PRODUCT
        elif name not in ELEMENTWISE | TAKES | RESHAPES:
            out &= ~_Is.PRODUCT
        if any(map(is_inexact, eqn.outvars)):
            size = max(map(_size, eqn.outvars))
            self._widest = max(self._widest, size)
            if name == "dot_general":
                self._product(eqn, ins, size)
            elif name in _COMPUTES:
                self._made += size
            elif name in _LIGHT:
                self._moves = True
            elif name in ROW_READS | ROW_WRITES:
                if ins[0] or name != "gather":  # rows of a table are light
                    self._indexed[name] += size
            else:
                self.calls = name
                order = shape_of(eqn.invars[0])[-1:]
                if name not in SOLVES or size * math.prod(order) > cpu_limits().changing:
                    self._reason = _slow(name)
        return [out] * len(eqn.outvars)

    def after(self, eqn: JaxprEqn, ins: list[_Is], outs: list[_Is]) -> None:
        name = kind_of(eqn)
        # Of many steps at once, a condition that is the same in all of them is still one.
        if name in CONTROL_FLOW and (name != "cond" or ins[0]):
            self._reason = _slow(name)

    def _product(self, eqn: JaxprEqn, ins: list[_Is], size: int) -> None:
        self._made += size
        (contracted, _), (batch, _) = eqn.params["dimension_numbers"]
        shape = shape_of(eqn.invars[0])
        summed, apart = (math.prod(shape[axis] for axis in axes) for axes in (contracted, batch))
        each = [_size(v) // max(summed, 1) for v in eqn.invars]  # rows, and columns
        if min(each) > apart:
            self.calls = "dot_general"
        if all(ins[:2]):
            if size * summed > cpu_limits().changing:
                self._reason = "multiplies two matrices that change from step to step"
            return
        (rows,) = (each[k] for k in (0, 1) if ins[k])
        if size > rows:
            self.rows = max(self.rows, rows)


def _size(atom: Any) -> int:
    return math.prod(shape_of(atom))


def _slow(name: str) -> str:
    return f"contains {name}, which is slow to make again"
