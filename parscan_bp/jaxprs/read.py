"""Readers of jaxprs, and the few places where jax 0.10 and jax 0.12 spell them differently."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Var, jaxpr_as_fun, jaxprs_in_params
from jax.interpreters import partial_eval as pe

from parscan_bp.jaxprs.hijax import kind_of, operation_of, program_of
from parscan_bp.jaxprs.primitive_kinds import CALLS, CUSTOM_CALLS, NO_EXCHANGE, ZERO_DERIVATIVE
from parscan_bp.trees import replace_at


def open_jaxpr(jaxpr: Any) -> Jaxpr:
    """The jaxpr without its constants (jax 0.12 has one class for both kinds)."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def called(eqn: JaxprEqn) -> ClosedJaxpr:
    """The jaxpr that a call primitive runs on its operands, with its constants."""
    if operation_of(eqn) is not None:
        held = program_of(eqn)
    else:
        held = eqn.params["jaxpr"] if "jaxpr" in eqn.params else eqn.params["call_jaxpr"]
    return ClosedJaxpr(open_jaxpr(held), getattr(held, "consts", ()))


def called_jaxpr(eqn: JaxprEqn) -> Jaxpr:
    """The same without them."""
    return open_jaxpr(called(eqn))


def inner_jaxprs(eqn: JaxprEqn) -> list[Any]:
    """The jaxprs that an equation holds."""
    if operation_of(eqn) is None:
        return list(jaxprs_in_params(eqn.params))
    return [called(eqn)] if kind_of(eqn) in CALLS | CUSTOM_CALLS else []


def scan_counts(eqn: JaxprEqn) -> tuple[int, int]:
    """The leading operands of a scan equation: how many are constants, and then how many carries.

    Args:
      eqn: an equation of `lax.scan_p`, operands [consts..., carry..., xs...].

    Returns:
      (number of constants, number of carry leaves).

    Example:
      >>> body = jax.make_jaxpr(lambda c, xs: jax.lax.scan(lambda c, x: (c * x, c), c, xs))
      >>> scan_counts(body(1.0, jnp.ones(3)).eqns[0])
      (0, 1)
    """
    if "num_carry" in eqn.params:
        return eqn.params["num_consts"], eqn.params["num_carry"]
    consts, carry, _ = eqn.params["ft_in"].unpack()
    return len(consts), len(carry)


def split_operands(eqn: JaxprEqn, args: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
    """The operands of a scan equation, or what stands for them: constants, carries and inputs."""
    a, b = scan_counts(eqn)
    return list(args[:a]), list(args[a : a + b]), list(args[a + b :])


def shape_of(atom: Any) -> tuple[int, ...]:
    """The shape of a variable or literal; () for tokens and the like."""
    return tuple(getattr(atom.aval, "shape", ()))


def is_differentiable(aval) -> bool:
    """Whether values of this type have tangents: real or complex floating point."""
    return jnp.issubdtype(aval.dtype, jnp.inexact)


def differentiable(avals: Sequence[Any]) -> tuple[int, ...]:
    """Positions of the types, or arrays, that have tangents.

    Example:
      >>> differentiable(jax.make_jaxpr(lambda a, b: a)(1, 2.0).in_avals)
      (1,)
    """
    return tuple(k for k, a in enumerate(avals) if is_differentiable(a))


def is_inexact(atom: Any) -> bool:
    """Has it a tangent: is its dtype floating or complex?"""
    dtype = getattr(atom.aval, "dtype", None)
    return dtype is not None and bool(jnp.issubdtype(dtype, jnp.inexact))


def is_complex(atom: Any) -> bool:
    """Is its dtype complex?"""
    dtype = getattr(atom.aval, "dtype", None)
    return dtype is not None and bool(jnp.issubdtype(dtype, jnp.complexfloating))


def variables(atoms: Sequence[Any]) -> list[Var]:
    """Those of the atoms that are no literals."""
    return [v for v in atoms if isinstance(v, Var)]


def walk(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    """Every equation at every depth; those of a Pallas kernel are its own affair."""
    for eqn in open_jaxpr(jaxpr).eqns:
        yield eqn
        if eqn.primitive.name != "pallas_call":
            for inner in inner_jaxprs(eqn):
                yield from walk(inner)


def communicates_over(jaxpr: Jaxpr, axis: str) -> str | None:
    """A primitive by which it exchanges numbers along a mesh axis, or `shard_map` over it."""
    for eqn in walk(jaxpr):
        if eqn.primitive.name not in NO_EXCHANGE and axis in named_axes(eqn):
            return eqn.primitive.name
    return None


def named_axes(eqn: JaxprEqn) -> frozenset[Any]:
    """The mesh axes that an equation names in its parameters, and whatever else is so called."""
    found: set[Any] = set()
    for name in ("axes", "axis_name", "manual_axes"):
        axes = eqn.params.get(name, ())
        found.update(axes if isinstance(axes, tuple | list | set | frozenset) else (axes,))
    return frozenset(found)


def needed_equations(jaxpr: Jaxpr, given: Collection[Var] = ()) -> list[JaxprEqn]:
    """The equations on which an output depends, the values of ``given`` being known."""
    live, kept = {v for v in jaxpr.outvars if isinstance(v, Var)}.difference(given), []
    for eqn in reversed(jaxpr.eqns):
        if live.intersection(eqn.outvars):
            live.update(v for v in eqn.invars if isinstance(v, Var) and v not in given)
            kept.append(eqn)
    return kept[::-1]


def part(
    jaxpr: Jaxpr, inputs: Sequence[Var], outs: Sequence[Any], given: Collection[Var] = ()
) -> Jaxpr:
    """What makes ``outs`` of these inputs, and of its constants; of ``given``, which are known."""
    names = jaxpr.debug_info._replace(arg_names=None, result_paths=None)
    made = jaxpr.replace(invars=list(inputs), outvars=list(outs), debug_info=names)
    return made.replace(eqns=needed_equations(made, given))


def depending(jaxpr: Jaxpr, on: Collection[Var]) -> set[Var]:
    """These variables, and all that is made of any of them."""
    found = set(on)
    for eqn in jaxpr.eqns:
        if not found.isdisjoint(variables(eqn.invars)):
            found.update(eqn.outvars)
    return found


def cut_to(jaxpr: Jaxpr, count: int) -> Jaxpr:
    """The program of the first ``count`` outputs; what they need not is left out at any depth.

    Its inputs are the same.
    """
    names = jaxpr.debug_info._replace(arg_names=None, result_paths=None)
    wanted = [k < count for k in range(len(jaxpr.outvars))]
    return pe.dce_jaxpr(jaxpr.replace(debug_info=names), wanted, instantiate=True)[0]


def with_known(jaxpr: Jaxpr, known: Mapping[Var, Var]) -> Jaxpr:
    """The jaxpr that reads ``known[v]`` wherever it read v, and makes what it then still needs."""

    def read(atoms: Sequence[Any]) -> list[Any]:
        return [known.get(v, v) if isinstance(v, Var) else v for v in atoms]

    eqns = [eqn.replace(invars=read(eqn.invars)) for eqn in jaxpr.eqns]
    replaced = jaxpr.replace(eqns=eqns, outvars=read(jaxpr.outvars))
    return replaced.replace(eqns=needed_equations(replaced))


def touches_ref(eqn: JaxprEqn) -> bool:
    """Does it read, write or make a mutable array?"""
    atoms = (*eqn.invars, *eqn.outvars)
    return any(isinstance(atom.aval, jax.ref.AbstractRef) for atom in atoms)


def names_axis(effect: Any) -> bool:
    """Whether JAX notes by it that an axis of an outer `vmap` or `shard_map` is named."""
    return type(effect).__name__ == "NamedAxisEffect"


def live_variables(
    jaxpr: Jaxpr, live_out: Sequence[bool], without: Collection[str] = ZERO_DERIVATIVE
) -> set[Var]:
    """The variables whose tangents the tangents of the outputs marked in `live_out` may need.

    A mean over the batch that is only logged, compared or detached is not among them.

    Args:
      jaxpr: the program.
      live_out: one flag per output.
      without: the primitives that have no derivative.
    """
    wanted = zip(jaxpr.outvars, live_out, strict=True)
    live = {v for v, used in wanted if used and isinstance(v, Var) and is_inexact(v)}
    for eqn in reversed(jaxpr.eqns):
        mask = [v in live for v in eqn.outvars]
        if not any(mask) or kind_of(eqn) in without:
            continue
        operands = eqn.invars
        if kind_of(eqn) in CALLS:
            inner = called_jaxpr(eqn)
            inside = live_variables(inner, mask, without)
            operands = [a for a, v in zip(operands, inner.invars, strict=True) if v in inside]
        live.update(v for v in operands if isinstance(v, Var) and is_inexact(v))
    return live


def tangent_jaxpr(
    eqn: JaxprEqn, dots: Sequence[Var], outs: Sequence[Var]
) -> tuple[list[Var], Jaxpr]:
    """The tangents of `outs` as a program of the operands and of the tangents of `dots`.

    For primitives that bring their own derivative, which is then read from what their rule does
    rather than from the primal program.

    Args:
      eqn: the equation.
      dots: those of its operands that have a tangent.
      outs: those of its results whose tangents are wanted, all of them float or complex.

    Returns:
      The distinct variables among the operands, and a jaxpr with inputs [operands..., tangents of
      `dots`...] and outputs [tangents of `outs`...].
    """
    call = alone(eqn, outs)
    return call.jaxpr.invars, open_jaxpr(_traced_rule(call, dots))


def holds_tracers(eqn: JaxprEqn) -> bool:
    """Whether the rule of a `jax.custom_jvp` closes over traced values, which are none of its call.

    They are those of the moment: a rule that is traced later, or once more, finds them dead, and
    takes their tangents to be zero.
    """
    call = alone(eqn, [v for v in eqn.outvars if is_inexact(v) and type(v) is Var])
    try:
        rule = _traced_rule(call, list(filter(is_inexact, call.jaxpr.invars)))
    except Exception:  # one that cannot be traced raises where it is differentiated
        return False
    return any(isinstance(v, jax.core.Tracer) for v in rule.consts)


def alone(eqn: JaxprEqn, outs: Sequence[Var] | None = None) -> ClosedJaxpr:
    """A call as a program of its own, ``distinct variables among its operands -> results``.

    Args:
      eqn: the call.
      outs: those of its results that are wanted; all that are kept if ``None``.
    """
    operands = list(dict.fromkeys(variables(eqn.invars)))
    outs = [v for v in eqn.outvars if type(v) is Var] if outs is None else list(outs)
    # The names of the arguments and results are those of the call, which are not these.
    names = called_jaxpr(eqn).debug_info._replace(arg_names=None, result_paths=None)
    return ClosedJaxpr(Jaxpr([], operands, outs, [eqn], eqn.effects, names), ())


def _traced_rule(call: ClosedJaxpr, dots: Sequence[Var]) -> ClosedJaxpr:
    """See `tangent_jaxpr`."""
    outs_of, operands = jaxpr_as_fun(call), call.jaxpr.invars
    moving = [operands.index(v) for v in dots]

    def tangents(primals: list[Any], tangents_in: list[Any]) -> list[Any]:
        run = lambda *values: outs_of(*replace_at(primals, moving, values))  # noqa: E731
        return jax.jvp(run, tuple(primals[i] for i in moving), tuple(tangents_in))[1]

    return jax.make_jaxpr(tangents)([v.aval for v in operands], [v.aval for v in dots])
