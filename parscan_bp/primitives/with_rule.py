"""Functions with a derivative rule of their own, right under any order of transformations.

`jax.custom_jvp` maps a function and its rule apart from each other. Once the mapped call is staged,
as by `jit(vmap(f))`, `checkpoint(vmap(f))` or a scan around it, JAX forgets where the rule put the
mapped axis, and takes tangents to have it where the values have it (jax 0.10 and 0.12). Here the
call is one primitive and mapped in one place: the results of the rule are moved to where the
function has them. Where the two agree, as they mostly do, nothing is moved.

Where what depends on tangents is separated from what is known, to be transposed, a call that
depends on them itself is linear: it stands in the rule of another function, or in what is given to
`jax.linear_transpose`. Nothing is left to differentiate, so that it is separated, and transposed,
as its program is without the rule.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import Recompute
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import ClosedJaxpr, JaxprEqn, Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir
from jax.interpreters import partial_eval as pe

from parscan_bp.jaxprs.read import names_axis, variables
from parscan_bp.jaxprs.replay import RETRACED, evaluate
from parscan_bp.jaxprs.stage import to_be_traced
from parscan_bp.primitives.mapping import MappedAxis, in_place, moved
from parscan_bp.primitives.separation import as_equation, separate, separate_within
from parscan_bp.primitives.zeros import nonzero, zeros_of
from parscan_bp.trees import replace_at
from parscan_bp.types import Array, PyTree


class WithRule:
    """``f``, with tangents ``jvp(primals, tangents) -> (outs, out tangents)``.

    The same as a `jax.custom_jvp` with symbolic zeros. What was traced is kept for as long as JAX
    keeps the trace: where settings or types of arguments ask for another one, it is made anew.

    Args:
      f: function of pytrees.
      jvp: its rule, which takes and returns `SymbolicZero` for tangents that are zero.
      linear: what makes the same values and has a transpose where they are linear; ``None`` is f.
    """

    def __init__(self, f: Callable, jvp: Callable, linear: Callable | None = None):
        self._f, self._jvp, self._linear = jax.jit(f), jvp, linear
        self._calls: dict[int, Call] = {}

    def __call__(self, *args: PyTree) -> PyTree:
        leaves, tree = jax.tree.flatten(args)
        with to_be_traced():
            traced = self._f.trace(*args)
        closed, out_tree = traced.jaxpr, jax.tree.structure(traced.out_info)
        assert len(closed.in_avals) == len(leaves), "the function closes over traced values"
        if id(closed) not in self._calls:
            call = Call(closed, self._rule(tree), self._flat_linear(tree))
            self._calls[id(closed)] = call  # holds what the key is of
        return jax.tree.unflatten(out_tree, self._calls[id(closed)](*leaves))

    def _rule(self, tree):
        def rule(primals, tangents):
            args, ts = (jax.tree.unflatten(tree, v) for v in (primals, tangents))
            outs, out_ts = self._jvp(args, ts)
            return jax.tree.leaves(outs), jax.tree.leaves(out_ts, is_leaf=_is_zero)

        return rule

    def _flat_linear(self, tree):
        linear = self._linear
        if linear is None:
            return None
        return lambda *values: jax.tree.leaves(linear(*jax.tree.unflatten(tree, values)))


class Call:
    """A traced function and its rule, both of flat values; compared by identity.

    Args:
      jaxpr: the function.
      rule: ``(primals, tangents) -> (outs, out tangents)``.
      linear: what is transposed in its place; ``None`` is the function.
    """

    def __init__(self, jaxpr: ClosedJaxpr, rule: Callable, linear: Callable | None = None):
        self.jaxpr, self.rule, self.linear = jaxpr, rule, linear
        self._mapped: dict[Any, tuple[Call, tuple[MappedAxis, ...]]] = {}

    def __call__(self, *values: Array) -> list[Array]:
        return _call_p.bind(*values, call_jaxpr=self.jaxpr, call=self)

    @functools.cached_property
    def run(self) -> Callable[..., list[Array]]:
        """The function."""
        return jaxpr_as_fun(self.jaxpr)

    @functools.cached_property
    def program(self) -> JaxprEqn:
        """A plain call of the function, or of what is linear in its place, which has no rule."""

        def of_types(*values):
            outs = (self.linear or self.run)(*values)
            return [of_type(v, a) for v, a in zip(outs, self.jaxpr.out_avals, strict=True)]

        return as_equation(jax.jit(of_types), self.jaxpr.in_avals)

    def mapped(self, types: Sequence[Any], axes: tuple[MappedAxis, ...], how: Any):
        """The call for operands with a mapped axis, and where its results have it."""
        key = (axes, tuple(types), how.size, how.name, how.spmd_name)
        if key not in self._mapped:
            self._mapped[key] = self._make_mapped(types, axes, how)
        return self._mapped[key]

    def _make_mapped(self, types, axes, how):
        to: tuple[MappedAxis, ...] = ()

        def function(*values):
            nonlocal to
            outs, to = in_place(self.run, axes, how)(*values)
            return outs

        jaxpr = jax.make_jaxpr(function)(*types)  # says where the results have it

        def rule(primals, tangents):
            places = nonzero(tangents)
            left: list[int] = []

            def one(*values):
                at, ts = list(values[: len(primals)]), values[len(primals) :]
                outs, out_ts = self.rule(at, replace_at(zeros_of(at), places, ts))
                left[:] = nonzero(out_ts)
                return [*outs, *(out_ts[k] for k in left)]

            each = (*axes, *(axes[k] for k in places))
            made, at = in_place(one, each, how)(*primals, *(tangents[k] for k in places))
            wanted = [*to, *(to[k] for k in left)]
            made = [moved(v, a, b, how) for v, a, b in zip(made, at, wanted, strict=True)]
            outs, out_ts = made[: len(to)], made[len(to) :]
            return outs, replace_at(zeros_of(outs), left, out_ts)

        given: Any = self.linear

        def linear(*values):
            outs, at = in_place(given, axes, how)(*values)
            return [moved(v, a, b, how) for v, a, b in zip(outs, at, to, strict=True)]

        return Call(jaxpr, rule, None if given is None else linear), to

    def checked(self, function: Callable, values: Sequence[Array]) -> list[Array]:
        """The results of a function that takes more values ahead, and returns more, beside those of
        this call: what `checkify` tells of errors. The rule is that of the call."""
        jaxpr = jax.make_jaxpr(function)(*values)
        ahead = len(values) - len(self.jaxpr.in_avals)
        beside = len(jaxpr.out_avals) - len(self.jaxpr.out_avals)

        def rule(primals, tangents):
            told = jaxpr_as_fun(jaxpr)(*primals)[:beside]
            outs, out_ts = self.rule(primals[ahead:], tangents[ahead:])
            return [*told, *outs], [*zeros_of(told), *out_ts]

        return Call(jaxpr, rule)(*values)

    def replayed(self, values: Sequence[Array]) -> list[Array]:
        """The results for values that vary over other mesh axes than when it was traced."""
        run = functools.partial(evaluate, self.jaxpr)
        return Call(jax.make_jaxpr(lambda *v: run(v))(*values), self.rule, self.linear)(*values)


def _is_zero(t: Any) -> bool:
    return isinstance(t, SymbolicZero)


def _as_tangent(t: Any, primal: Any) -> Array:
    """The tangent as an array: under `jax.jit` and `jax.vmap` JAX hands Python numbers on."""
    if hasattr(t, "dtype"):
        return t
    aval = jax.typeof(primal).to_tangent_aval()
    return of_type(jnp.asarray(t, aval.dtype), aval)


def of_type(value: Array, aval: Any) -> Array:
    """The value with a weak type where another one has it: it says what a sum with it is."""
    if not aval.weak_type or jax.typeof(value).weak_type:
        return value
    how = {"new_dtype": aval.dtype, "weak_type": True, "sharding": None}
    return lax.convert_element_type_p.bind(value, **how)


class _CallWithRule(Primitive):
    multiple_results = True

    def bind(self, *values, call, call_jaxpr=None, subfuns=()):
        """``subfuns`` has the function of a call as `checkify` binds it."""
        if subfuns:
            (function,) = subfuns
            return call.checked(function.call_wrapped, values)
        return super().bind(*values, call_jaxpr=call_jaxpr, call=call)


_call_p = _CallWithRule("call_with_rule")


@_call_p.def_impl
def _run(*values, call_jaxpr, call):
    return call.run(*values)


# What a program with a `HiPrim` is where nothing differentiates or maps it any more (jax 0.12).
_call_p.to_lojax = _run  # type: ignore[attr-defined, method-assign, unused-ignore]


@_call_p.def_effectful_abstract_eval
def _types(*avals, call_jaxpr, call):
    return list(call_jaxpr.out_avals), call_jaxpr.effects


def _differentiate(primals, tangents, *, call_jaxpr, call):
    zeros = [isinstance(t, ad.Zero) for t in tangents]
    ts = [
        SymbolicZero(t.aval) if zero else _as_tangent(t, v)
        for t, v, zero in zip(tangents, primals, zeros, strict=True)
    ]
    outs, out_ts = call.rule(list(primals), ts)
    types = call_jaxpr.out_avals
    outs = [of_type(v, a) for v, a in zip(outs, types, strict=True)]
    pairs = zip(out_ts, types, strict=True)
    return outs, [ad.Zero(t.aval) if _is_zero(t) else of_type(t, a) for t, a in pairs]


def _separate(trace, *tracers, call_jaxpr, call):
    if all(t.is_known() for t in tracers):
        known = [t.pval.get_known() for t in tracers]
        return _call_p.bind(*known, call_jaxpr=call_jaxpr, call=call)
    return separate(call.program, trace, tracers)


def _separate_equation(saveable, unknown, instantiated, eqn):
    if any(unknown):
        program = eqn.params["call"].program
        return separate_within(program, saveable, unknown, instantiated, eqn)
    # What is known keeps its rule, and JAX's own way: it is made again where nothing forbids it.
    keep = saveable(eqn.primitive, *(v.aval for v in eqn.invars), **eqn.params)
    known = [False] * len(eqn.outvars)
    if not all(map(names_axis, eqn.effects)) or keep not in (False, Recompute):
        return eqn, None, known, known, []
    read = [v for v, here in zip(eqn.invars, instantiated, strict=True) if not here]
    return eqn, eqn, known, [True] * len(eqn.outvars), variables(read)


def _batch(how, values, axes, *, call_jaxpr, call):
    if all(axis is None for axis in axes):
        return call(*values), [None] * len(call_jaxpr.out_avals)
    mapped, to = call.mapped(tuple(map(jax.typeof, values)), tuple(axes), how)
    return mapped(*values), list(to)


mlir.register_lowering(
    _call_p, mlir.lower_fun(lambda *values, call_jaxpr, call: call.run(*values), True)
)
ad.primitive_jvps[_call_p] = _differentiate
batching.fancy_primitive_batchers[_call_p] = _batch
pe.custom_partial_eval_rules[_call_p] = _separate
pe.partial_eval_jaxpr_custom_rules[_call_p] = _separate_equation
RETRACED[_call_p.name] = lambda eqn, values: eqn.params["call"].replayed(values)
