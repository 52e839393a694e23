"""Tracing a `lax.scan` call: the body as a jaxpr, its mistakes reported by JAX itself.

The call is traced by `jax.lax.scan`, not by a copy of its front end. Promotion of weak
types, hoisting of closed-over values, loop-invariant carries, every check and every
error message are therefore those of the installed version.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from parscan_bp.autodiff.replay import bind
from parscan_bp.structure import scan_counts, symbolic_size
from parscan_bp.types import Array, PyTree


@dataclasses.dataclass(frozen=True)
class Staged:
    """A traced `lax.scan` call.

    Attributes:
      outer: jaxpr of the call: a few equations (promotions), one of which is the scan.
      index: position of the scan among the equations.
      consts: values that the outer jaxpr closes over.
      out_tree: pytree structure of ``(carry, ys)``.
    """

    outer: Jaxpr
    index: int
    consts: Sequence[Any]
    out_tree: Any

    @property
    def equation(self) -> JaxprEqn:
        return self.outer.eqns[self.index]

    @property
    def symbolic_size(self) -> str | None:
        """See `structure.symbolic_size`."""
        variables = (*self.equation.invars, *self.equation.outvars)
        return symbolic_size([v.aval for v in variables], self.equation.params["length"])

    @property
    def body(self) -> ClosedJaxpr:
        """(consts, carry, x) -> (carry, y), flat."""
        return self.equation.params["jaxpr"]

    def const_positions(self, variables: Sequence[Any]) -> tuple[int | None, ...]:
        """Which const of the scan each variable of the outer jaxpr is; ``None`` for no const."""
        count, _ = scan_counts(self.equation)
        position = {v: k for k, v in enumerate(self.equation.invars[:count])}
        return tuple(None if isinstance(v, Literal) else position.get(v) for v in variables)

    def run(self, args: Sequence[Array], scan: Callable[[list[Array]], Sequence[Array]]) -> PyTree:
        """Evaluates the call with ``scan`` in place of the scan equation."""
        env: dict[Any, Any] = {}

        def read(v):
            return as_array(v, v.val) if isinstance(v, Literal) else env[v]

        variables = (*self.outer.constvars, *self.outer.invars)
        for v, value in zip(variables, (*self.consts, *args), strict=True):
            env[v] = as_array(v, value)
        for k, eqn in enumerate(self.outer.eqns):
            values = [read(v) for v in eqn.invars]
            out = scan(values) if k == self.index else bind(eqn, values)
            env.update(zip(eqn.outvars, out, strict=True))
        return jax.tree.unflatten(self.out_tree, [read(v) for v in self.outer.outvars])


def as_array(variable: Any, value: Any) -> Any:
    """A Python scalar as an array of the type it was traced with; anything else as it is."""
    return value if hasattr(value, "shape") else np.asarray(value, variable.aval.dtype)


def stage(
    f: Callable,
    params: PyTree,
    init: PyTree,
    xs: PyTree,
    how: Mapping[str, Any],
) -> Staged | None:
    """Traces ``lax.scan(step, init, xs, **how)``; ``None`` if no scan is left.

    The step is ``f``, or ``partial(f, params)`` where ``params`` is not ``None``: then the
    leaves of ``params`` are the first inputs of the traced call.

    Raises:
      TypeError, ValueError: as `jax.lax.scan` for the same arguments.
    """

    def call(params, init, xs):
        step = f if params is None else functools.partial(f, params)
        return lax.scan(step, init, xs, **how)

    return stage_call(call, params, init, xs)


def stage_call(call: Callable, *args: PyTree) -> Staged | None:
    """Traces ``call(*args)``, whose last scan is the one to differentiate; ``None`` without one.

    Raises:
      Whatever ``call`` raises.
    """
    # A body run by the Python interpreter has no jaxpr to linearise.
    with jax.disable_jit(False):
        closed, out_shape = jax.make_jaxpr(call, return_shape=True)(*args)
    scans = [k for k, e in enumerate(closed.jaxpr.eqns) if e.primitive.name == "scan"]
    if not scans:
        return None
    return Staged(closed.jaxpr, scans[-1], closed.consts, jax.tree.structure(out_shape))
