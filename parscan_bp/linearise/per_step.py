"""A function of every step of a stretch, traced once: what all steps share is made once."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Var

from parscan_bp.jaxprs.batching import mapped, unbatchable
from parscan_bp.jaxprs.read import depending, part
from parscan_bp.jaxprs.replay import evaluate
from parscan_bp.trees import nbytes
from parscan_bp.types import PyTree


@dataclasses.dataclass(frozen=True, eq=False)
class PerStep:
    """A function of what all steps share and of x.

    Attributes:
      jaxpr: leaves of the result from those of what all steps share, and of x.
      shared: number of leaves that all steps share.
      tree: pytree structure of the result.
    """

    jaxpr: ClosedJaxpr
    shared: int
    tree: Any

    @classmethod
    def of(cls, fn: Callable[[PyTree, PyTree], PyTree], fixed: PyTree, one: PyTree) -> PerStep:
        """Traces ``fn(fixed, x)`` for an x of the types of ``one``.

        Args:
          fn: function of two pytrees, returning a pytree.
          fixed: values shared by all steps.
          one: types of a step's own values, see `first_of`.
        """
        traced = jax.jit(fn).trace(fixed, one)
        tree: Any = jax.tree.structure(traced.out_info)
        return cls(traced.jaxpr, len(jax.tree.leaves(fixed)), tree)

    @functools.cached_property
    def varies(self) -> tuple[bool, ...]:
        """For each leaf of the result, whether it depends on x.

        One that does not, such as a weight matrix, is computed once.
        """
        jaxpr = self.jaxpr.jaxpr
        touched = depending(jaxpr, jaxpr.invars[self.shared :])
        return tuple(isinstance(v, Var) and v in touched for v in jaxpr.outvars)

    @property
    def nbytes(self) -> int:
        """Bytes of what there is of each step."""
        pairs = zip(self.jaxpr.out_avals, self.varies, strict=True)
        return nbytes([aval for aval, varies in pairs if varies])

    @functools.cached_property
    def _in_turn(self) -> bool:
        return unbatchable(self.jaxpr) is not None

    def mapped(self, f: Callable) -> Callable:
        """A function that evaluates a part of it, of many steps: as a batch if it may be."""
        return mapped(f, in_turn=self._in_turn)

    @property
    def varying(self) -> ClosedJaxpr:
        """What makes the leaves that vary."""
        return self._part(True)

    @property
    def unvarying(self) -> ClosedJaxpr:
        """What makes the others."""
        return self._part(False)

    def of_each(
        self, fixed: PyTree, stacked: PyTree, make: Callable | None = None, *more: PyTree
    ) -> PyTree:
        """The result for every x of ``stacked``.

        Args:
          fixed: values shared by all steps.
          stacked: values with a leading axis of steps.
          make: ``make(inputs, *more)`` gives the leaves that vary, in the place of `varying`.
          more: other values with that axis.
        """
        leaves = jax.tree.leaves(fixed)
        make = functools.partial(evaluate, self.varying) if make is None else make

        def one(x, *more):
            return make([*leaves, *jax.tree.leaves(x)], *more)

        each = self.mapped(one)(stacked, *more) if any(self.varies) else []
        once: Sequence[Any] = ()
        if not all(self.varies):
            first = [a[0] for a in jax.tree.leaves(stacked)]
            once = evaluate(self.unvarying, [*leaves, *first])
        return jax.tree.unflatten(self.tree, self.in_order(each, once))

    def in_order(self, each: Iterable[Any], once: Iterable[Any]) -> list[Any]:
        """All leaves, of those that vary and of the others."""
        varying, others = iter(each), iter(once)
        return [next(varying if v else others) for v in self.varies]

    def _part(self, wanted: bool) -> ClosedJaxpr:
        """The leaves that vary, or those that do not."""
        jaxpr = self.jaxpr.jaxpr
        pairs = zip(jaxpr.outvars, self.varies, strict=True)
        outs = [v for v, varies in pairs if varies == wanted]
        return ClosedJaxpr(part(jaxpr, jaxpr.invars, outs), self.jaxpr.consts)
