"""A cell in the arrangement of another library."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Mapping

import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr

from parscan_bp.cells.base import Cell
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
      joined_in_step: whether their step joins its weights itself, which makes its products
        others than ours to a compiler.

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
    joined_in_step: bool = False

    @property
    def rejoins(self) -> bool:
        """Whether our cell makes other products than their step does: fewer, of joined weights."""
        return self.arithmetic["dot_general"] != 2 or self.joined_in_step

    def describes(self, step: ClosedJaxpr) -> bool:
        """Whether the step does this arithmetic, no other, and all in one real dtype."""
        counts = collections.Counter(eqn.primitive.name for eqn in step.jaxpr.eqns)
        computed = {name: n for name, n in counts.items() if name not in _MOVES}
        dtypes = {aval.dtype for aval in (*step.in_avals, *step.out_avals)}
        real = len(dtypes) == 1 and all(jnp.issubdtype(dtype, jnp.floating) for dtype in dtypes)
        return real and computed == dict(self.arithmetic)
