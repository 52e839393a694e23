"""A cell in the arrangement of another library."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Mapping

import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, JaxprEqn

from parscan_bp.cells.base import Cell
from parscan_bp.jaxprs.read import with_known
from parscan_bp.types import PyTree

# Operations that only move numbers.
_MOVES = frozenset({"split", "slice", "reshape", "concatenate", "broadcast_in_dim", "squeeze"})


@dataclasses.dataclass(frozen=True, eq=False)
class View:
    """A step of another library that is one of our cells, with their parameters and carry.

    Attributes:
      cell: the cell.
      params: linear function of their parameters, a pytree, to the cell's.
      carry: for each leaf of the cell's carry, which leaf of theirs it is.
      arithmetic: how often each operation that computes occurs in their step. A step that
        something was added to (a hook, another activation) is not the cell any more.
      gates: for each of `Cell.gates`, the operation of their step that makes it, and how many of
        its kind come before; or an operation that takes it, and as which operand. Without any,
        they are made as our cell makes them.

    Example:
      >>> from parscan_bp.cells import GRU, View
      >>> same = View(GRU(), lambda params: params, (0,), {"dot_general": 2})
      >>> same.cell
      GRU(recurrent_bias=True)
    """

    cell: Cell
    params: Callable[[PyTree], PyTree]
    carry: tuple[int, ...]
    arithmetic: Mapping[str, int]
    gates: tuple[tuple[str, int] | tuple[str, int, int], ...] = ()

    def describes(self, step: ClosedJaxpr) -> bool:
        """Whether the step does this arithmetic, no other, and all in one real dtype."""
        counts = collections.Counter(eqn.primitive.name for eqn in step.jaxpr.eqns)
        computed = {name: n for name, n in counts.items() if name not in _MOVES}
        dtypes = {aval.dtype for aval in (*step.in_avals, *step.out_avals)}
        real = len(dtypes) == 1 and all(jnp.issubdtype(dtype, jnp.floating) for dtype in dtypes)
        return real and computed == dict(self.arithmetic)

    def gates_of(self, step: ClosedJaxpr) -> ClosedJaxpr | None:
        """The part of a step that `describes` found to be the cell which makes its gates."""
        if not self.gates:
            return None
        by_name: dict[str, list[JaxprEqn]] = collections.defaultdict(list)
        for eqn in step.jaxpr.eqns:
            by_name[eqn.primitive.name].append(eqn)
        outs = []
        for name, number, *operand in self.gates:
            eqn = by_name[name][number]
            outs.append(eqn.invars[operand[0]] if operand else eqn.outvars[0])
        names = step.jaxpr.debug_info._replace(result_paths=None)
        part = with_known(step.jaxpr.replace(outvars=outs, debug_info=names), {})
        return ClosedJaxpr(part, step.consts)
