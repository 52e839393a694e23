"""The body of a scan as a flat function, and its evaluation over stretches of steps."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax import lax
from jax.extend.core import ClosedJaxpr, Literal

from parscan_bp.jaxprs.dependence import forwarded
from parscan_bp.jaxprs.min_cut import Cut
from parscan_bp.jaxprs.read import is_differentiable, with_known
from parscan_bp.jaxprs.replay import evaluate
from parscan_bp.structure.reach import Reach
from parscan_bp.trees import nbytes
from parscan_bp.types import Array, PyTree


@dataclasses.dataclass(frozen=True)
class Body:
    """A traced scan body ``(consts, carry, x) -> (carry, y)``, all flat.

    Attributes:
      jaxpr: inputs ``[*consts, *carry, *x]``, outputs ``[*carry, *y]``.
      num_consts: number of loop-invariant inputs.
      num_carry: number of carry leaves.
      only: the carry leaves that take part in differentiation; ``None`` for all that can.
    """

    jaxpr: ClosedJaxpr
    num_consts: int
    num_carry: int
    only: tuple[int, ...] | None = None

    def __hash__(self):
        return id(self.jaxpr)

    def __call__(self, consts, carry, x) -> tuple[list[Array], list[Array]]:
        out = evaluate(self.jaxpr, [*consts, *carry, *x])
        return list(out[: self.num_carry]), list(out[self.num_carry :])

    def split(self, args: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """Consts, first carry and inputs of a scan, of all its arguments."""
        a, b = self.num_consts, self.num_consts + self.num_carry
        return list(args[:a]), list(args[a:b]), list(args[b:])

    @property
    def const_avals(self):
        return self.jaxpr.in_avals[: self.num_consts]

    @property
    def carry_avals(self):
        return self.jaxpr.in_avals[self.num_consts : self.num_consts + self.num_carry]

    @property
    def x_avals(self):
        return self.jaxpr.in_avals[self.num_consts + self.num_carry :]

    @property
    def y_avals(self):
        return self.jaxpr.out_avals[self.num_carry :]

    @functools.cached_property
    def float_carry(self) -> tuple[int, ...]:
        """Carry leaves that have tangents."""
        floats = [k for k, a in enumerate(self.carry_avals) if is_differentiable(a)]
        return tuple(k for k in floats if self.only is None or k in self.only)

    @functools.cached_property
    def reach(self) -> Reach:
        """Which derivatives there are."""
        return Reach.of(self.jaxpr, self.num_consts, self.num_carry)

    def restricted(self, carry: tuple[int, ...]) -> Body:
        """The same step, of which only these carry leaves have tangents."""
        body = dataclasses.replace(self, only=carry)
        body.__dict__["reach"] = self.reach
        return body

    @functools.cached_property
    def forwarded(self) -> dict[int, int]:
        """y leaves that are the new carry itself: index of y -> index of the carry."""
        found = enumerate(forwarded(self.jaxpr, self.num_carry))
        return {j: k for j, k in found if k is not None}

    @functools.cached_property
    def nbytes(self) -> int:
        """Bytes of all values that one step computes."""
        return nbytes([v.aval for eqn in self.jaxpr.jaxpr.eqns for v in eqn.outvars])

    @functools.cached_property
    def float_y(self) -> tuple[int, ...]:
        """y leaves that have tangents of their own: not merely the new carry."""
        return tuple(
            j
            for j, a in enumerate(self.y_avals)
            if is_differentiable(a) and j not in self.forwarded
        )


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
        """Traces ``fn(fixed, x)`` for an x of the types of ``one``; see `over_steps`.

        Of a jitted function JAX keeps the trace for as long as the function itself is kept.
        """
        jitted: Any = fn if hasattr(fn, "trace") else jax.jit(fn)
        traced = jitted.trace(fixed, one)
        tree: Any = jax.tree.structure(traced.out_info[0])
        closed = _without_known(traced.jaxpr, tree.num_leaves)
        shared = len(jax.tree.leaves(fixed))
        return cls(closed, shared, tree, _depends_on(closed, shared))

    def cut(self, at_once: Callable[[int], bool]) -> Cut:
        """Of the leaves that vary, what is kept of each step, and what is made again."""
        return Cut.of(self._part(True), self.shared, at_once)

    def of_each(self, fixed: PyTree, stacked: PyTree) -> PyTree:
        """The result for every x of ``stacked``."""
        return self._of_each(functools.partial(evaluate, self._part(True)), fixed, stacked)

    def of_each_kept(
        self, fixed: PyTree, stacked: PyTree, cut: Cut, kept: Sequence[Array]
    ) -> PyTree:
        """The same from what the ``cut`` made for every x."""
        return self._of_each(cut.finish, fixed, stacked, kept)

    def _of_each(self, varying: Callable, fixed: PyTree, stacked: PyTree, *more) -> PyTree:
        """The result, of which ``varying(inputs, *more)`` are the leaves that vary."""
        leaves = jax.tree.leaves(fixed)

        def one(x, *more):
            return varying([*leaves, *jax.tree.leaves(x)], *more)

        each = iter(jax.vmap(one)(stacked, *more) if any(self.varies) else [])
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


def over_steps(
    fn: Callable[..., tuple[PyTree, Known]],
    fixed: PyTree,
    stacked: PyTree,
    arrange: Callable[[PerStep], PerStep] = lambda steps: steps,
) -> tuple[PyTree, tuple[bool, ...]]:
    """``fn(fixed, x)`` for every x of ``stacked``, results that are the same for all kept once.

    Args:
      fn: function of two pytrees, returning a pytree, and what of it x holds already.
      fixed: values shared by all steps.
      stacked: values with a leading axis of steps.
      arrange: gives the traced function another result.

    Returns:
      The pytree, and for each of its leaves whether it is stacked; see `PerStep`.
    """
    steps = arrange(PerStep.of(fn, fixed, first_of(stacked)))
    return steps.of_each(fixed, stacked), steps.varies


def first_of(stacked: PyTree) -> PyTree:
    """The types of one entry of the leading axis of every leaf."""
    first = functools.partial(lax.index_in_dim, index=0, keepdims=False)
    return jax.eval_shape(lambda: jax.tree.map(first, stacked))


def _without_known(closed: ClosedJaxpr, count: int) -> ClosedJaxpr:
    """The first ``count`` outputs; the others are pairs of a value and where it can be read."""
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
    return ClosedJaxpr(with_known(results, known), closed.consts)


def _depends_on(closed: ClosedJaxpr, first: int) -> tuple[bool, ...]:
    """For each output, whether it depends on an input from position ``first`` on."""
    touched: set[Any] = set(closed.jaxpr.invars[first:])
    for eqn in closed.jaxpr.eqns:
        if any(not isinstance(v, Literal) and v in touched for v in eqn.invars):
            touched.update(eqn.outvars)
    return tuple(not isinstance(v, Literal) and v in touched for v in closed.jaxpr.outvars)
