"""Which outputs of a jaxpr depend on which inputs, and which are one and the same value."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any

import numpy as np
from jax.extend.core import Jaxpr, JaxprEqn, Var

from parscan_bp.jaxprs.hijax import kind_of
from parscan_bp.jaxprs.interpret import DerivativeInterpreter, Interpreter
from parscan_bp.jaxprs.primitive_kinds import CALLS
from parscan_bp.jaxprs.read import called_jaxpr, is_inexact, open_jaxpr, touches_ref, walk


def dependencies(jaxpr: Any, *, derivative: bool = False) -> np.ndarray:
    """Which outputs depend on which inputs, by value and whatever the dtype.

    Goes into calls, `cond` (both branches and the predicate), `scan` and `while` (to a fixed
    point). Results of any other primitive depend on all its operands. A body that touches a
    mutable array depends on everything.

    Args:
      jaxpr: a Jaxpr or ClosedJaxpr.
      derivative: whether an output that has no derivative by an input, such as a comparison with
        it, is said not to depend on it.

    Returns:
      Boolean array of shape (number of outputs, number of inputs). False is a promise.

    Example:
      >>> import jax
      >>> dependencies(jax.make_jaxpr(lambda a, b: (a + 1.0, a * b))(1.0, 2.0)).tolist()
      [[True, False], [True, True]]
    """
    opened = open_jaxpr(jaxpr)
    num_in, num_out = len(opened.invars), len(opened.outvars)
    if any(touches_ref(eqn) for eqn in walk(opened)):
        return np.ones((num_out, num_in), bool)
    # One bit per input: unions of sets of inputs are then single integer operations.
    bits = [1 << i if not derivative or is_inexact(v) else 0 for i, v in enumerate(opened.invars)]
    rows = (_Derivatives if derivative else _Dependence)().run(opened, bits)
    return np.array([[bool(row >> i & 1) for i in range(num_in)] for row in rows], bool).reshape(
        num_out, num_in
    )


def forwarded(body: Any, num_carry: int) -> tuple[int | None, ...]:
    """For each y output of a scan body the carry output that it equals, or None.

    Two outputs are equal here when they are the same variable, also through calls (a jitted step
    that returns `h, h`). Such a y_t is x_t: it needs no storage and no derivative of its own. Not
    through calls that bring their own derivative: theirs of equal values may differ.

    Args:
      body: the scan body, outputs [carry'..., ys...].
      num_carry: number of carry outputs.

    Returns:
      One flat carry position or None per y.

    Example:
      >>> import jax
      >>> forwarded(jax.make_jaxpr(lambda h, x: (h + x, h * x))(1.0, 2.0), 1)
      (None,)
    """
    outs = _canonical(open_jaxpr(body))
    carry = outs[:num_carry]
    return tuple(
        carry.index(y) if isinstance(y, Var) and y in carry else None for y in outs[num_carry:]
    )


class _Dependence(Interpreter[int]):
    derivative = False
    prune = False
    bottom = 0

    def equation(self, eqn: JaxprEqn, ins: list[int], live: list[bool]) -> list[int]:
        return [reduce(or_, ins)] * len(eqn.outvars)

    def join(self, a: int, b: int, name: str) -> int:
        return a | b


class _Derivatives(DerivativeInterpreter[int], _Dependence):
    """Of derivatives alone."""


def _canonical(jaxpr: Jaxpr) -> list[Any]:
    """The outputs, each replaced by one representative of all the variables that equal it."""
    same: dict[Var, Any] = {}

    def root(atom: Any) -> Any:
        return same.get(atom, atom) if isinstance(atom, Var) else atom

    for eqn in jaxpr.eqns:
        if kind_of(eqn) not in CALLS:
            continue
        inner = called_jaxpr(eqn)
        known = {v: root(a) for v, a in zip(inner.invars, eqn.invars, strict=True)}
        for outer, value in zip(eqn.outvars, _canonical(inner), strict=True):
            if isinstance(value, Var):
                same[outer] = known.setdefault(value, outer)
    return [root(atom) for atom in jaxpr.outvars]
