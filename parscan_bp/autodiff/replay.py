"""Replaying a traced step, also on values that vary over more mesh axes than when it was traced.

Inside `jax.shard_map` a type says over which mesh axes a value varies. A step that multiplies a
row by a parameter, which is the same on all devices, says so in its jaxpr: an equation makes the
parameter vary, and its transpose sums over the devices. A linear solve, though, is of one type,
so that parameters are made to vary before it; then these equations have nothing to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, jaxpr_as_fun

from parscan_bp.structure.jaxprs import CALLS, called_jaxpr, open_jaxpr, scan_counts
from parscan_bp.types import Array, PyTree


def bind(eqn: JaxprEqn, values: Sequence[Array]) -> list[Array]:
    """The outputs of one equation of a jaxpr."""
    if any(map(_varies_more, values, eqn.invars)):
        replay = _RETRACED.get(eqn.primitive.name)
        if replay is not None:
            return list(replay(eqn, values))
        values = _vary_over(frozenset().union(*map(_varying, values)), values)
    with eqn.ctx.manager:  # the settings under which it was traced
        out = eqn.primitive.bind(*values, **eqn.primitive.get_bind_params(eqn.params))
    return list(out) if eqn.primitive.multiple_results else [out]


def evaluate(closed: ClosedJaxpr, values: Sequence[Array]) -> list[Array]:
    """The outputs of a jaxpr."""
    jaxpr = closed.jaxpr
    if not any(map(_varies_more, values, jaxpr.invars)):
        return jaxpr_as_fun(closed)(*values)
    env: dict[Any, Array] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    env.update(zip(jaxpr.invars, values, strict=True))

    def read(v):
        return v.val if isinstance(v, Literal) else env[v]

    for eqn in jaxpr.eqns:
        env.update(zip(eqn.outvars, bind(eqn, [read(v) for v in eqn.invars]), strict=True))
    return [read(v) for v in jaxpr.outvars]


def vary_alike(tree: PyTree) -> PyTree:
    """The floats of a tree, made to vary over the mesh axes of all of them together."""
    leaves, treedef = jax.tree.flatten(tree, is_leaf=_is_zero)
    moving = [not _is_zero(v) and jnp.issubdtype(jax.typeof(v).dtype, jnp.inexact) for v in leaves]
    floats = [v for v, move in zip(leaves, moving, strict=True) if move]
    cast = iter(_vary_over(frozenset().union(*map(_varying, floats)), floats))
    cast_leaves = [next(cast) if move else v for v, move in zip(leaves, moving, strict=True)]
    return jax.tree.unflatten(treedef, cast_leaves)


def _vary_over(axes: frozenset[str], values: Sequence[Array]) -> list[Array]:
    missing = [tuple(axes - _varying(v)) for v in values]
    return [
        lax.pcast(v, new, to="varying") if new else v
        for v, new in zip(values, missing, strict=True)
    ]


def _is_zero(v: Any) -> bool:
    return isinstance(v, SymbolicZero)


def _varying(value: Any) -> frozenset[str]:
    """The mesh axes over which a value varies."""
    return jax.typeof(value).manual_axis_type.varying


def _varies_more(value: Any, v: Any) -> bool:
    kind = getattr(v.aval, "manual_axis_type", None)
    return kind is not None and _varying(value) != kind.varying


def _call(eqn, values):
    inner = called_jaxpr(eqn)
    (held,) = (p for p in eqn.params.values() if open_jaxpr(p) is inner)
    return evaluate(ClosedJaxpr(inner, getattr(held, "consts", ())), values)


def _cond(eqn, values):
    branches = [lambda *v, b=b: evaluate(b, v) for b in eqn.params["branches"]]
    return lax.switch(values[0], branches, *values[1:])


def _scan(eqn, values):
    consts, carry = scan_counts(eqn)
    first, xs = consts + carry, values[consts + carry :]

    def step(c, x):
        out = evaluate(eqn.params["jaxpr"], [*values[:consts], *c, *x])
        return out[:carry], out[carry:]

    how = {name: eqn.params[name] for name in ("length", "reverse", "unroll")}
    last, ys = lax.scan(step, list(values[consts:first]), list(xs), **how)
    return [*last, *ys]


_RETRACED = {
    **dict.fromkeys(CALLS, _call),
    "cond": _cond,
    "scan": _scan,
    "pvary": lambda eqn, values: values,
}
"""How equations are replayed whose own programs were traced for other types."""
