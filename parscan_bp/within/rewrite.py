"""A program whose scans are run in another way, all else being as it was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, JaxprEqn

from parscan_bp.jaxprs.calls import MADE_AGAIN
from parscan_bp.jaxprs.control_flow import RunProgram
from parscan_bp.jaxprs.hijax import kind_of
from parscan_bp.jaxprs.primitive_kinds import OWN_CALLS, PLAIN_CALLS
from parscan_bp.jaxprs.read import called, inner_jaxprs, walk
from parscan_bp.jaxprs.replay import bind, interpret
from parscan_bp.jaxprs.source import scope_of
from parscan_bp.types import Array
from parscan_bp.within.outputs import ApplyEquation
from parscan_bp.within.sites import OPENED

ByScan = Callable[[JaxprEqn, Sequence[Any], ApplyEquation], Sequence[Any]]
"""``(scan, its operands, apply) -> its results``; ``apply`` is for the equations of its step."""


def rewritten(closed: ClosedJaxpr, by_scan: ByScan) -> ClosedJaxpr:
    """The program with ``by_scan`` for each of its scans, at every depth that can be made again."""

    def apply(eqn: JaxprEqn, values: Sequence[Any]) -> Sequence[Any]:
        with scope_of(eqn):
            return apply_in_scope(eqn, values)

    def apply_in_scope(eqn: JaxprEqn, values: Sequence[Any]) -> Sequence[Any]:
        kind = kind_of(eqn)
        if kind == "scan":
            with eqn.ctx.manager:
                return by_scan(eqn, values, apply)
        if kind not in OPENED or not holds_scan(eqn):
            return bind(eqn, values)
        if kind == "shard_map":
            return _shard_map(eqn, values, run)
        if kind in PLAIN_CALLS and "jaxpr" in eqn.params:
            return _call(eqn, values, run)
        return MADE_AGAIN[kind](eqn, values, run)

    def run(program: ClosedJaxpr, values: Sequence[Array]) -> list[Array]:
        return interpret(program, values, apply)

    return jax.make_jaxpr(lambda *values: run(closed, values))(*closed.in_avals)


def holds_scan(eqn: JaxprEqn) -> bool:
    """Whether there is a scan inside of it that is not this package's own."""
    return any(
        inside.primitive.name == "scan"
        for inner in inner_jaxprs(eqn)
        if kind_of(eqn) not in OWN_CALLS
        for inside in walk(inner)
    )


def _call(eqn: JaxprEqn, values: Sequence[Any], run: RunProgram) -> Sequence[Any]:
    """A call of `jax.jit`, with its name, its shardings and the arguments that it donates."""
    program = jax.make_jaxpr(lambda *v: run(called(eqn), v))(*values)
    return eqn.primitive.bind(*values, **{**eqn.params, "jaxpr": program})


def _shard_map(eqn: JaxprEqn, values: Sequence[Any], run: RunProgram) -> Sequence[Any]:
    params, program = eqn.params, called(eqn)
    axes = params["newly_manual_axes" if "newly_manual_axes" in params else "manual_axes"]
    mapped = jax.shard_map(
        lambda *v: run(program, v),
        mesh=params["mesh"],
        in_specs=params["in_specs"],
        out_specs=list(params["out_specs"]),
        check_vma=params["check_vma"],
        axis_names=set(axes),
    )
    return mapped(*values)
