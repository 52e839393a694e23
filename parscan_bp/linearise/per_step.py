"""A function of every step of a stretch, traced once: what all steps share is made once."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Literal

from parscan_bp.jaxprs.batching import mapped, unbatchable
from parscan_bp.jaxprs.decisions import mixed
from parscan_bp.jaxprs.read import with_known
from parscan_bp.jaxprs.replay import evaluate
from parscan_bp.types import Array, PyTree

Known = Sequence[tuple[Array, Array]]
"""Values that a function makes, each with the same value as its argument holds it."""


@dataclasses.dataclass(frozen=True, eq=False)
class PerStep:
    """A function of what all steps share and of x, traced once.

    What of its result is the same for every x is told apart.

    Attributes:
      jaxpr: leaves of the result from those of what all steps share, and of x.
      shared: number of leaves that all steps share.
      tree: pytree structure of the result.
      varies: for each of its leaves, whether it depends on x. A leaf that does not (a weight
        matrix) is computed once.
    """

    jaxpr: ClosedJaxpr
    shared: int
    tree: Any
    varies: tuple[bool, ...]

    @classmethod
    def of(cls, fn: Callable[..., tuple[PyTree, Known]], fixed: PyTree, one: PyTree) -> PerStep:
        """Traces ``fn(fixed, x)`` for an x of the types of ``one``.

        Of a jitted function JAX keeps the trace for as long as the function itself is kept.

        Args:
          fn: function of two pytrees, returning a pytree, and what of it x holds already.
          fixed: values shared by all steps.
          one: types of a step's own values, see `first_of`.
        """
        jitted: Any = fn if hasattr(fn, "trace") else jax.jit(fn)
        traced = jitted.trace(fixed, one)
        tree: Any = jax.tree.structure(traced.out_info[0])
        closed = _without_known(traced.jaxpr, tree.num_leaves)
        shared = len(jax.tree.leaves(fixed))
        return cls(closed, shared, tree, _depends_on(closed, shared))

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

        each = iter(self.mapped(one)(stacked, *more) if any(self.varies) else [])
        once: Iterator[Array] = iter(())
        if not all(self.varies):
            first = [a[0] for a in jax.tree.leaves(stacked)]
            once = iter(evaluate(self._part(False), [*leaves, *first]))
        return jax.tree.unflatten(self.tree, [next(each if v else once) for v in self.varies])

    def _part(self, wanted: bool) -> ClosedJaxpr:
        """The leaves that vary, or those that do not."""
        closed = self.jaxpr.jaxpr
        outs = [
            v for v, varies in zip(closed.outvars, self.varies, strict=True) if varies == wanted
        ]
        names = closed.debug_info._replace(result_paths=None)
        part = with_known(closed.replace(outvars=outs, debug_info=names), {})
        return ClosedJaxpr(part, self.jaxpr.consts)


def _without_known(closed: ClosedJaxpr, count: int) -> ClosedJaxpr:
    """The first ``count`` outputs; the others are pairs of a value and where it can be read.

    A value that is compared with what it was made of is not read, but made again with it.
    """
    jaxpr = closed.jaxpr
    pairs = zip(jaxpr.outvars[count::2], jaxpr.outvars[count + 1 :: 2], strict=True)
    made = {v for eqn in jaxpr.eqns for v in eqn.outvars}
    known = {
        v: read
        for v, read in pairs
        if not isinstance(v, Literal) and v in made and v.aval == read.aval
    }
    names = jaxpr.debug_info._replace(result_paths=None)
    results = jaxpr.replace(outvars=jaxpr.outvars[:count], debug_info=names)
    while compared := {v for _, held in mixed(results, known) for v in held}:
        known = {v: read for v, read in known.items() if v not in compared}
    return ClosedJaxpr(with_known(results, known), closed.consts)


def _depends_on(closed: ClosedJaxpr, first: int) -> tuple[bool, ...]:
    """For each output, whether it depends on an input from position ``first`` on."""
    touched: set[Any] = set(closed.jaxpr.invars[first:])
    for eqn in closed.jaxpr.eqns:
        if any(not isinstance(v, Literal) and v in touched for v in eqn.invars):
            touched.update(eqn.outvars)
    return tuple(not isinstance(v, Literal) and v in touched for v in closed.jaxpr.outvars)
