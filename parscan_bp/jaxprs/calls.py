"""Making equations that hold programs again, what they hold being run in another way.

Each is made by the function of JAX that made it. A call with a rule of the user's keeps it: the
rule is traced once where the step was, as JAX itself would have, and run like all else.

A replay wants that for values that vary over more mesh axes: what such an equation holds was traced
for the types of its operands, and says of its results that they do not differ from device to device
where these did not. All operands and results of it then vary alike: both branches of a condition,
and a loop before and after it, have one type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.custom_derivatives import SymbolicZero, zero_from_primal
from jax.extend.core import ClosedJaxpr, JaxprEqn

from parscan_bp.jaxprs.control_flow import RunProgram, run_inside
from parscan_bp.jaxprs.hijax import kind_of, operation_of
from parscan_bp.jaxprs.primitive_kinds import CALLS, CONTROL_FLOW, PLAIN_CALLS
from parscan_bp.jaxprs.read import called, is_differentiable
from parscan_bp.jaxprs.replay import RETRACED, alike, evaluate, varying_axes
from parscan_bp.trees import replace_at
from parscan_bp.types import Array


def _call(eqn, values, run):
    return run(called(eqn), values)


def _of(eqn: JaxprEqn, run: RunProgram) -> Callable[..., Sequence[Array]]:
    """What a call runs, as a function."""
    closed = called(eqn)
    return lambda *values: run(closed, values)


def _checkpoint(eqn, values, run):
    if operation_of(eqn) is not None:
        return _call(eqn, values, run)
    how = {name: eqn.params[name] for name in ("prevent_cse", "policy")}
    return jax.checkpoint(_of(eqn, run), **how)(*values)


def _custom_jvp(eqn, values, run):
    call: Any = jax.custom_jvp(_of(eqn, run))

    def rule(primals, tangents):
        moving = [k for k, t in enumerate(tangents) if not isinstance(t, SymbolicZero)]
        given = [*primals, *(tangents[k] for k in moving)]
        made = run(_rule_of(eqn, _push, moving), given)
        outs, ts = made[: len(eqn.outvars)], iter(made[len(eqn.outvars) :])
        return outs, [next(ts) if _has_tangent(v) else zero_from_primal(v, True) for v in outs]

    call.defjvp(rule, symbolic_zeros=True)
    return call(*values)


def _custom_vjp(eqn, values, run):
    call: Any = jax.custom_vjp(_of(eqn, run))
    moving = [k for k, v in enumerate(values) if _has_tangent(v)]

    def backward(primals, cts):
        given = [ct for ct, v in zip(cts, eqn.outvars, strict=True) if is_differentiable(v.aval)]
        made = run(_rule_of(eqn, _pull, moving), [*primals, *given])
        return tuple(replace_at([None] * len(primals), moving, made))

    call.defvjp(lambda *primals: (call(*primals), primals), backward)
    return call(*values)


def _rule_of(eqn: JaxprEqn, derivative: Callable, moving: Sequence[int]) -> ClosedJaxpr:
    """The rule of a call, for tangents of these operands alone, traced where the step was."""
    primals = [v.aval for v in eqn.invars]
    tangents = {
        _push: [primals[k] for k in moving],
        _pull: [v.aval for v in eqn.outvars if is_differentiable(v.aval)],
    }

    def rule(primals, given):
        def call(*values):
            params = eqn.primitive.get_bind_params(eqn.params)
            return eqn.primitive.bind(*replace_at(primals, moving, values), **params)

        return derivative(call, [primals[k] for k in moving], given)

    with eqn.ctx.manager:
        return jax.make_jaxpr(rule)(primals, tangents[derivative])


def _push(call, primals, tangents):
    """Values, and the tangents of those that have any."""
    outs, ts = jax.jvp(call, primals, tangents)
    return [*outs, *(t for t, v in zip(ts, outs, strict=True) if _has_tangent(v))]


def _pull(call, primals, cts):
    """Cotangents of the operands."""
    only = lambda *values: [v for v in call(*values) if _has_tangent(v)]  # noqa: E731
    return jax.vjp(only, *primals)[1](cts)


def _has_tangent(value: Any) -> bool:
    return is_differentiable(jax.typeof(value))


def _retraced(closed: ClosedJaxpr, values: Sequence[Array], run: RunProgram) -> ClosedJaxpr:
    """The program for the types of these values."""
    return jax.make_jaxpr(lambda *v: run(closed, v))(*values)


def _linear_solve(eqn, values, run):
    """A `lax.custom_linear_solve`: of several programs, each with constants before b."""
    jaxprs, lengths = eqn.params["jaxprs"], eqn.params["const_lengths"]
    parts, start = [], 0
    for length in lengths:
        parts.append(values[start : start + length])
        start += length
    made = [
        None if closed is None else _retraced(closed, [*part, *values[start:]], run)
        for closed, part in zip(jaxprs, parts, strict=True)
    ]
    params = {**eqn.params, "jaxprs": type(jaxprs)(*made)}
    return eqn.primitive.bind(*values, **params)


def _custom_vmap(eqn, values, run):
    call = _retraced(eqn.params["call"], values, run)
    return eqn.primitive.bind(*values, **{**eqn.params, "call": call})


MADE_AGAIN: dict[str, Callable[..., Sequence[Array]]] = {
    **dict.fromkeys(PLAIN_CALLS, _call),
    "remat2": _checkpoint,
    "custom_jvp_call": _custom_jvp,
    "custom_vjp_call": _custom_vjp,
    **dict.fromkeys(CONTROL_FLOW, run_inside),
    "custom_linear_solve": _linear_solve,
    "custom_vmap_call": _custom_vmap,
}
"""``(equation, values, run) -> its results``, by the kind of the equation."""


def _replay(eqn: JaxprEqn, values: Sequence[Array]) -> Sequence[Array]:
    """The same for values that vary more than they did where it was traced."""
    kind = kind_of(eqn)
    if kind in CALLS and (kind in PLAIN_CALLS or operation_of(eqn) is not None):
        return evaluate(called(eqn), values)  # there is nothing to make again
    axes = varying_axes(values)  # of a condition's index, too: there may be no operands

    def run(closed: ClosedJaxpr, given: Sequence[Array]) -> list[Array]:
        return alike(evaluate(closed, given), axes | varying_axes(given))

    return MADE_AGAIN[kind](eqn, alike(values), run)


RETRACED.update(dict.fromkeys(MADE_AGAIN, _replay))
