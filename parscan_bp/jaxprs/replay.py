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

from parscan_bp.jaxprs.hijax import kind_of
from parscan_bp.jaxprs.primitive_kinds import CALLS
from parscan_bp.jaxprs.read import called, named_axes
from parscan_bp.types import Array, PyTree


def bind(eqn: JaxprEqn, values: Sequence[Array]) -> list[Array]:
    """The outputs of one equation of a jaxpr."""
    elsewhere = _is_elsewhere(eqn)
    moved = elsewhere or any(map(_varies_more, values, eqn.invars))
    if moved:
        replay = RETRACED.get(kind_of(eqn))
        if replay is not None:
            return list(replay(eqn, values))
        values = alike(values)
    params = eqn.params
    here: Any = contextlib.nullcontext()
    if elsewhere:
        mesh = jax.sharding.get_abstract_mesh()
        params = {name: _on_mesh(mesh, value) for name, value in params.items()}
        here = jax.sharding.use_abstract_mesh(mesh)
    with eqn.ctx.manager, here:  # the settings under which it was traced, but for the devices
        out = eqn.primitive.bind(*values, **eqn.primitive.get_bind_params(params))
    outs = list(out) if eqn.primitive.multiple_results else [out]
    if moved:
        _check_types(eqn, values, outs)
    return outs


def _check_types(eqn: JaxprEqn, values: Sequence[Array], outs: Sequence[Array]) -> None:
    """Raises if a result does not vary where an operand does, unless the axis is one it names.

    Its type would be wrong, as of a call whose own program is not traced again, and its cotangent
    would be summed over devices that have different ones.
    """
    axes = varying_axes(values) - named_axes(eqn)
    if any(axes - _varying(out) for out in outs):
        raise NotImplementedError(
            f"f: the step contains {eqn.primitive.name}, of whose results JAX does not know that "
            f"they differ along the mesh axes {sorted(axes)}; a step without it is wanted here"
        )


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
    jaxpr = closed.jaxpr
    given = zip([*closed.consts, *values], [*jaxpr.constvars, *jaxpr.invars], strict=True)
    moved = any(map(_is_elsewhere, jaxpr.eqns[:1])) or any(_varies_more(*pair) for pair in given)
    if not moved:
        return _as_arrays(jaxpr, jaxpr_as_fun(closed)(*values))
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
        if kind_of(eqn) not in calls:
            return bind(eqn, values)
        return interpret(called(eqn), values, apply)

    return jax.make_jaxpr(lambda *values: interpret(closed, values, apply))(*closed.in_avals)


def vary_alike(tree: PyTree) -> PyTree:
    """The floats of a tree, made to vary over the mesh axes of all of them together."""
    leaves, treedef = jax.tree.flatten(tree, is_leaf=lambda v: isinstance(v, SymbolicZero))
    axes = varying_axes([v for v in leaves if _is_float(v)])
    return jax.tree.unflatten(treedef, [_vary(v, axes) if _is_float(v) else v for v in leaves])


def varying_with(tree: PyTree, like: PyTree) -> PyTree:
    """The arrays of a tree, made to vary over the mesh axes of another one together."""
    axes = varying_axes(jax.tree.leaves(like))
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


def varying_axes(values: Sequence[Array]) -> frozenset[str]:
    """The mesh axes over which any of the values varies."""
    return frozenset().union(*map(_varying, values))


def alike(values: Sequence[Array], axes: Collection[str] = ()) -> list[Array]:
    """The values, made to vary over the mesh axes of all of them together, and over these."""
    axes = varying_axes(values).union(axes)
    return [_vary(v, axes) for v in values]


def _vary(value: Array, axes: frozenset[str]) -> Array:
    missing = tuple(axes - _varying(value))
    return lax.pcast(value, missing, to="varying") if missing else value


def _varying(value: Any) -> frozenset[str]:
    """The mesh axes over which a value varies."""
    return jax.typeof(value).manual_axis_type.varying


def _varies_more(value: Any, v: Any) -> bool:
    kind = getattr(v.aval, "manual_axis_type", None)
    return kind is not None and _varying(value) != kind.varying


RETRACED: dict[str, Callable[[JaxprEqn, Sequence[Array]], Sequence[Array]]] = {
    "pvary": lambda eqn, values: alike(values, named_axes(eqn))
}
"""How equations are replayed whose own programs were traced for other types; see `calls`."""
