"""The body of a scan as a flat function, and its evaluation over stretches of steps."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun

from parscan_bp.autodiff.replay import evaluate
from parscan_bp.trees import nbytes
from parscan_bp.types import Array, PyTree


@dataclasses.dataclass(frozen=True)
class Body:
    """A traced scan body ``(consts, carry, x) -> (carry, y)``, all flat.

    Attributes:
      jaxpr: inputs ``[*consts, *carry, *x]``, outputs ``[*carry, *y]``.
      num_consts: number of loop-invariant inputs.
      num_carry: number of carry leaves.
    """

    jaxpr: ClosedJaxpr
    num_consts: int
    num_carry: int

    def __hash__(self):
        return id(self.jaxpr)

    def __call__(self, consts, carry, x) -> tuple[list[Array], list[Array]]:
        out = evaluate(self.jaxpr, [*consts, *carry, *x])
        return list(out[: self.num_carry]), list(out[self.num_carry :])

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
        return tuple(k for k, a in enumerate(self.carry_avals) if is_differentiable(a))

    @functools.cached_property
    def forwarded(self) -> dict[int, int]:
        """y leaves that are the new carry itself: index of y -> index of the carry."""
        outvars = self.jaxpr.jaxpr.outvars
        new = {v: k for k, v in enumerate(outvars[: self.num_carry]) if not isinstance(v, Literal)}
        ys = enumerate(outvars[self.num_carry :])
        return {j: new[v] for j, v in ys if not isinstance(v, Literal) and v in new}

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


def is_differentiable(aval) -> bool:
    """Whether values of this type have tangents: real or complex floating point."""
    return jnp.issubdtype(aval.dtype, jnp.inexact)


def over_steps(
    fn: Callable[..., PyTree], fixed: PyTree, stacked: PyTree
) -> tuple[PyTree, tuple[bool, ...]]:
    """``fn(fixed, x)`` for every x of ``stacked``, results that are the same for all kept once.

    Args:
      fn: function of two pytrees, returning a pytree.
      fixed: values shared by all steps.
      stacked: values with a leading axis of steps.

    Returns:
      The pytree, and for each of its leaves whether it is stacked. A leaf that depends on
      no element of ``stacked`` (a weight matrix) is computed once and has no leading axis.
    """
    one = jax.eval_shape(lambda t: jax.tree.map(lambda a: a[0], t), stacked)
    closed, shape = jax.make_jaxpr(fn, return_shape=True)(fixed, one)
    run = jaxpr_as_fun(closed)
    fixed, stacked = jax.tree.leaves(fixed), jax.tree.leaves(stacked)
    varies = _depends_on(closed, len(fixed))

    def pick(wanted):
        def call(xs):
            out = run(*fixed, *xs)
            return [v for v, varying in zip(out, varies, strict=True) if varying == wanted]

        return call

    per_step = iter(jax.vmap(pick(True))(stacked)) if any(varies) else iter(())
    shared = iter(pick(False)([a[0] for a in stacked])) if not all(varies) else iter(())
    leaves = [next(per_step) if varying else next(shared) for varying in varies]
    return jax.tree.unflatten(jax.tree.structure(shape), leaves), varies


def _depends_on(closed: ClosedJaxpr, first: int) -> tuple[bool, ...]:
    """For each output, whether it depends on an input from position ``first`` on."""
    touched: set[Any] = set(closed.jaxpr.invars[first:])
    for eqn in closed.jaxpr.eqns:
        if any(not isinstance(v, Literal) and v in touched for v in eqn.invars):
            touched.update(eqn.outvars)
    return tuple(not isinstance(v, Literal) and v in touched for v in closed.jaxpr.outvars)
