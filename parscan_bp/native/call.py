"""Loops over steps that are one native function on a CPU, wherever they can be.

`scan` has the contract of `jax.lax.scan`, and is traced as a call of it: whoever reads a program
sees that loop in it. When the call is compiled for a CPU, the loop becomes a function of LLVM if
all that its steps do is known there; else, and on every other device, it is `jax.lax.scan`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir

from parscan_bp.jaxprs.hijax import kind_of
from parscan_bp.jaxprs.read import scan_counts
from parscan_bp.jaxprs.replay import bind, evaluate, interpret
from parscan_bp.jaxprs.stage import to_be_traced
from parscan_bp.native import llvm
from parscan_bp.native.program import Loop, Unsupported
from parscan_bp.originals import lax_scan
from parscan_bp.primitives.mapping import MappedAxis, in_place
from parscan_bp.trees import replace_at
from parscan_bp.types import Array, PyTree


def scan(
    step: Callable, init: PyTree, xs: PyTree, *, length: int, reverse: bool = False, unroll: int = 1
) -> tuple[PyTree, PyTree]:
    """As `jax.lax.scan`."""
    run = functools.partial(lax_scan, length=length, reverse=reverse, unroll=unroll)
    leaves, tree = jax.tree.flatten((init, xs))
    trees = []

    def call(*leaves):
        outs, out_tree = jax.tree.flatten(run(step, *jax.tree.unflatten(tree, leaves)))
        trees.append(out_tree)
        return outs

    outs = _bind(call, leaves)
    return jax.tree.unflatten(trees[0], outs)


def _bind(f: Callable[..., Sequence[Array]], values: Sequence[Array]) -> list[Array]:
    """The results of a function, which is traced and may have loops that are made natively."""
    with to_be_traced():
        closed = jax.make_jaxpr(f)(*values)
    jaxpr = closed.jaxpr
    jaxpr = jaxpr.replace(constvars=[], invars=[*jaxpr.constvars, *jaxpr.invars])
    return native_call_p.bind(*closed.consts, *values, jaxpr=ClosedJaxpr(jaxpr, ()))


def _run(*values: Array, jaxpr: ClosedJaxpr) -> list[Array]:
    return jaxpr_as_fun(jaxpr)(*values)


def _natively(*values: Array, jaxpr: ClosedJaxpr) -> list[Array]:
    def apply(eqn, operands):
        outs = _native(eqn, operands) if kind_of(eqn) == "scan" else None
        return bind(eqn, operands) if outs is None else outs

    return interpret(jaxpr, values, apply)


def _native(eqn: JaxprEqn, values: Sequence[Array]) -> list[Array] | None:
    """The results of a loop; ``None`` if there is no native function for it."""
    params = eqn.params
    try:
        loop = Loop.of(params["jaxpr"], *scan_counts(eqn), params["length"], params["reverse"])
        name, scratch = llvm.target_of(loop)
    except Unsupported:
        return None
    count = scan_counts(eqn)[0]
    values = [*evaluate(loop.ahead, values[:count]), *values[count:]]
    avals: list[Any] = [v.aval for v in eqn.outvars]
    types = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    types.append(jax.ShapeDtypeStruct((max(scratch, 1),), loop.dtype))
    return list(jax.ffi.ffi_call(name, types)(*values))[:-1]


def unsupported(
    jaxpr: ClosedJaxpr, shared: int, carry: int, length: int, reverse: bool
) -> str | None:
    """Why there is no native function for a loop, as it continues "the step ..."; else ``None``.

    Args:
      jaxpr: of a step, ``[*shared, *carry, *x] -> [*carry, *y]``.
      shared, carry: how many there are of each.
      length, reverse: of the loop.
    """
    try:
        llvm.text_of(Loop.of(jaxpr, shared, carry, length, reverse))
    except Unsupported as why:
        return str(why)
    return None


def _differentiate(primals, tangents, *, jaxpr):
    """By `jax.lax.scan`, whose tangents can be transposed."""
    moving = [k for k, t in enumerate(tangents) if not isinstance(t, ad.Zero)]
    run = lambda *values: _run(*replace_at(primals, moving, values), jaxpr=jaxpr)  # noqa: E731
    values, ts = (tuple(of[k] for k in moving) for of in (primals, tangents))
    return jax.jvp(run, values, ts)


def _batch(how, values, axes, *, jaxpr):
    where: Sequence[MappedAxis] = ()

    def run(*values):
        nonlocal where
        outs, where = in_place(functools.partial(_run, jaxpr=jaxpr), axes, how)(*values)
        return outs

    return _bind(run, values), where


def _lower(ctx: Any, *operands: Any, jaxpr: ClosedJaxpr) -> Any:
    run = _natively if _is_of_one_device(ctx.module_context) else _run
    return mlir.lower_fun(run, True)(ctx, *operands, jaxpr=jaxpr)


def _is_of_one_device(context: Any) -> bool:
    """Whether what is compiled runs in this process, and no device has a part of its arrays."""
    if context.lowering_parameters.for_export:
        return False
    where = context.axis_context
    return getattr(where, "num_devices", None) == 1 or bool(getattr(where, "manual_axes", ()))


native_call_p = Primitive("native_call")
native_call_p.multiple_results = True


@native_call_p.def_impl
def _compiled(*values, jaxpr):
    with jax.disable_jit(False):
        return jax.jit(functools.partial(native_call_p.bind, jaxpr=jaxpr))(*values)


native_call_p.def_effectful_abstract_eval(lambda *_, jaxpr: (jaxpr.out_avals, jaxpr.effects))
ad.primitive_jvps[native_call_p] = _differentiate
batching.fancy_primitive_batchers[native_call_p] = _batch
mlir.register_lowering(native_call_p, mlir.lower_fun(_run, True))
mlir.register_lowering(native_call_p, _lower, platform="cpu")
