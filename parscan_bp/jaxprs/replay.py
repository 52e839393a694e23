"""Replaying a traced step, also on values that vary over more mesh axes than when it was traced.

Inside `jax.shard_map` a type says over which mesh axes a value varies. A step that multiplies a
row by a parameter, which is the same on all devices, says so in its jaxpr: an equation makes the
parameter vary, and its transpose sums over the devices. A linear solve, though, is of one type,
so that parameters are made to vary before it; then these equations have nothing to do.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, jaxpr_as_fun
from jax.sharding import NamedSharding

from parscan_bp.jaxprs.primitive_kinds import CALLS
from parscan_bp.jaxprs.read import called_jaxpr, open_jaxpr, scan_counts
from parscan_bp.originals import lax_scan
from parscan_bp.types import Array, PyTree


def bind(eqn: JaxprEqn, values: Sequence[Array]) -> list[Array]:
    """The outputs of one equation of a jaxpr."""
    elsewhere = _is_elsewhere(eqn)
    if elsewhere or any(map(_varies_more, values, eqn.invars)):
        replay = RETRACED.get(eqn.primitive.name)
        if replay is not None:
            return list(replay(eqn, values))
        axes = _axes(values)
        values = [_vary(v, axes) for v in values]
    params = eqn.params
    here: Any = contextlib.nullcontext()
    if elsewhere:
        mesh = jax.sharding.get_abstract_mesh()
        params = {name: _on_mesh(mesh, value) for name, value in params.items()}
        here = jax.sharding.use_abstract_mesh(mesh)
    with eqn.ctx.manager, here:  # the settings under which it was traced, but for the devices
        out = eqn.primitive.bind(*values, **eqn.primitive.get_bind_params(params))
    return list(out) if eqn.primitive.multiple_results else [out]


def _on_mesh(mesh: Any, value: Any) -> Any:
    """A sharding that a parameter states, on the mesh as it is here."""
    moved = isinstance(value, NamedSharding) and value.mesh.axis_names == mesh.axis_names
    return NamedSharding(mesh, value.spec) if moved else value


def _is_elsewhere(eqn: JaxprEqn) -> bool:
    """Whether it was traced before the program came to run on each device of a mesh axis."""
    mesh = jax.sharding.get_abstract_mesh()
    return bool(mesh.manual_axes) and eqn.ctx.cur_abstract_mesh != mesh


def evaluate(closed: ClosedJaxpr, values: Sequence[Array]) -> list[Array]:
    """The outputs of a jaxpr."""
    moved = any(map(_is_elsewhere, closed.jaxpr.eqns[:1]))
    if not moved and not any(map(_varies_more, values, closed.jaxpr.invars)):
        return _as_arrays(closed.jaxpr, jaxpr_as_fun(closed)(*values))
    return interpret(closed, values, bind)


def interpret(
    closed: ClosedJaxpr, values: Sequence[Array], apply: Callable[..., Sequence[Array]]
) -> list[Array]:
    """The outputs of a jaxpr with ``apply(eqn, values)`` in place of each of its equations."""
    jaxpr = closed.jaxpr
    env: dict[Any, Array] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    env.update(zip(jaxpr.invars, values, strict=True))

    def read(v):
        return v.val if isinstance(v, Literal) else env[v]

    for eqn in jaxpr.eqns:
        env.update(zip(eqn.outvars, apply(eqn, [read(v) for v in eqn.invars]), strict=True))
    return _as_arrays(jaxpr, [read(v) for v in jaxpr.outvars])


def _as_arrays(jaxpr: Jaxpr, out: Sequence[Any]) -> list[Array]:
    """The outputs, of which a literal is a number without axes or dtype of its own."""

    def whole(aval: Any, value: Any) -> Array:
        return jnp.asarray(value, None if aval.weak_type else aval.dtype)

    pairs = zip(jaxpr.outvars, out, strict=True)
    return [whole(v.aval, value) if isinstance(v, Literal) else value for v, value in pairs]


def inlined(closed: ClosedJaxpr, calls: Collection[str] = CALLS) -> ClosedJaxpr:
    """The same program without these calls."""

    def apply(eqn, values):
        if eqn.primitive.name not in calls:
            return bind(eqn, values)
        return interpret(called(eqn), values, apply)

    return jax.make_jaxpr(lambda *values: interpret(closed, values, apply))(*closed.in_avals)


def vary_alike(tree: PyTree) -> PyTree:
    """The floats of a tree, made to vary over the mesh axes of all of them together."""
    leaves, treedef = jax.tree.flatten(tree, is_leaf=lambda v: isinstance(v, SymbolicZero))
    axes = _axes([v for v in leaves if _is_float(v)])
    return jax.tree.unflatten(treedef, [_vary(v, axes) if _is_float(v) else v for v in leaves])


def varying_with(tree: PyTree, like: PyTree) -> PyTree:
    """The arrays of a tree, made to vary over the mesh axes of another one together."""
    axes = _axes(jax.tree.leaves(like))
    return jax.tree.map(lambda v: _vary(v, axes), tree)


def varying_as(tangent: Array, like: Array) -> Array:
    """A tangent of `vary_alike` values, over no more mesh axes than what it is the tangent of.

    It is the same on all devices along the others. In reverse mode the mean is never made: its
    transpose gives each of the devices its share of the cotangent.
    """
    axes = tuple(sorted(_varying(tangent) - _varying(like)))
    return lax.pmean(tangent, axes) if axes else tangent


def _is_float(v: Any) -> bool:
    return not isinstance(v, SymbolicZero) and jnp.issubdtype(jax.typeof(v).dtype, jnp.inexact)


def _axes(values: Sequence[Array]) -> frozenset[str]:
    """The mesh axes over which any of the values varies."""
    return frozenset().union(*map(_varying, values))


def _vary(value: Array, axes: frozenset[str]) -> Array:
    missing = tuple(axes - _varying(value))
    return lax.pcast(value, missing, to="varying") if missing else value


def _varying(value: Any) -> frozenset[str]:
    """The mesh axes over which a value varies."""
    return jax.typeof(value).manual_axis_type.varying


def _varies_more(value: Any, v: Any) -> bool:
    kind = getattr(v.aval, "manual_axis_type", None)
    return kind is not None and _varying(value) != kind.varying


def called(eqn: JaxprEqn) -> ClosedJaxpr:
    """The jaxpr that a call primitive runs, with its constants."""
    inner = called_jaxpr(eqn)
    (held,) = (p for p in eqn.params.values() if open_jaxpr(p) is inner)
    return ClosedJaxpr(inner, getattr(held, "consts", ()))


def within(eqn: JaxprEqn, values: Sequence[Any], run: Callable[..., Sequence[Any]]) -> list[Any]:
    """The results of control flow, what is inside of it being run in another way.

    Args:
      eqn: an equation of `cond`, `scan` or `while`.
      values: its operands: arrays, or pytrees of them.
      run: ``(jaxpr, values) -> its results``, of a loop in the types that it began with.
    """
    replay = _while if eqn.primitive.name == "while" else RETRACED[eqn.primitive.name]
    return list(replay(eqn, values, run))


def _call(eqn, values, run=evaluate):
    return run(called(eqn), values)


def _cond(eqn, values, run=evaluate):
    branches = [lambda *v, b=b: run(b, v) for b in eqn.params["branches"]]
    return lax.switch(values[0], branches, *values[1:])


def _scan(eqn, values, run=evaluate):
    consts, carry = scan_counts(eqn)
    first, xs = consts + carry, values[consts + carry :]

    def step(c, x):
        out = run(eqn.params["jaxpr"], [*values[:consts], *c, *x])
        return out[:carry], out[carry:]

    how = {name: eqn.params[name] for name in ("length", "reverse", "unroll")}
    last, ys = lax_scan(step, list(values[consts:first]), list(xs), **how)
    return [*last, *ys]


def _while(eqn, values, run):
    test, body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    tested, stepped = values[:test], values[test : test + body]
    return lax.while_loop(
        lambda carry: run(eqn.params["cond_jaxpr"], [*tested, *carry])[0],
        lambda carry: run(eqn.params["body_jaxpr"], [*stepped, *carry]),
        list(values[test + body :]),
    )


RETRACED: dict[str, Callable[..., Sequence[Any]]] = {
    **dict.fromkeys(CALLS, _call),
    "cond": _cond,
    "scan": _scan,
    "pvary": lambda eqn, values, run=evaluate: values,
}
"""How equations are replayed whose own programs were traced for other types."""
