"""The scans of a program: where each stands, and what is known of what it is given."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun

from parscan_bp.jaxprs.calls import MADE_AGAIN
from parscan_bp.jaxprs.hijax import kind_of
from parscan_bp.jaxprs.primitive_kinds import OWN_CALLS, PLAIN_CALLS
from parscan_bp.jaxprs.read import called, inner_jaxprs, names_axis, open_jaxpr, part, touches_ref
from parscan_bp.jaxprs.source import source_of

OPENED = frozenset(MADE_AGAIN) - {"custom_vjp_call"} | {"shard_map"}
"""Equations that are made again around the scans inside of them."""


@dataclasses.dataclass(frozen=True, eq=False)
class Site:
    """One scan of a program.

    Attributes:
      index: its number, in the order in which the program runs; what holds a scan comes before it.
      equation: the scan.
      source: where the user's source calls it, ``file.py:line``.
      inside: kinds of the equations that hold it, the outermost first.
      holder: the program that it is an equation of.
      values: those of the program's constants that are known.
    """

    index: int
    equation: JaxprEqn
    source: str
    inside: tuple[str, ...]
    holder: Jaxpr
    values: Mapping[Var, Any]

    @property
    def known(self) -> list[np.ndarray | None]:
        """Its operands where the program says what they are; ``None`` for the others.

        As of a counter that begins with 0, and of ``jnp.arange``.
        """
        return [_known(self.holder, self.values, atom) for atom in self.equation.invars]

    @property
    def how(self) -> dict[str, Any]:
        """How it goes over its inputs, as options of `jax.lax.scan`."""
        return {name: self.equation.params[name] for name in ("length", "reverse", "unroll")}

    @property
    def stays(self) -> str | None:
        """Why it stays as it is; ``None`` if it can be replaced."""
        closed = next((kind for kind in self.inside if kind not in OPENED), None)
        if closed == "custom_vjp_call":
            return "it is inside of a jax.custom_vjp, whose rule is the derivative"
        if closed is not None:
            return f"it is inside of {closed}"
        effects = [effect for effect in self.equation.effects if not names_axis(effect)]
        if touches_ref(self.equation):
            return "it reads or writes a mutable array"
        return f"its step has effects: {effects[0]}" if effects else None


def sites_of(closed: ClosedJaxpr) -> list[Site]:
    """Every scan of a program, also inside of calls, control flow and other scans."""
    found: dict[int, Site] = {}

    def visit(jaxpr: Jaxpr, consts: Sequence[Any], inside: tuple[str, ...]) -> None:
        values = dict(zip(jaxpr.constvars, consts, strict=bool(consts)))
        for eqn in jaxpr.eqns:
            kind = kind_of(eqn)
            if kind == "scan" and id(eqn) not in found:  # a program may be called twice
                found[id(eqn)] = Site(len(found), eqn, source_of(eqn), inside, jaxpr, values)
            if kind not in (*OWN_CALLS, "pallas_call"):
                # JAX tells what control flow holds without its constants.
                programs = [called(eqn)] if kind in PLAIN_CALLS else inner_jaxprs(eqn)
                for inner in programs:
                    visit(open_jaxpr(inner), getattr(inner, "consts", ()), (*inside, kind))

    visit(closed.jaxpr, closed.consts, ())
    return list(found.values())


_MOST_EQUATIONS = 8
"""Of what makes a known operand: a counter is a literal, a range one equation."""


def _known(jaxpr: Jaxpr, values: Mapping[Var, Any], atom: Any) -> np.ndarray | None:
    """An integer or vector of integers that a program makes of nothing but its constants."""
    aval = atom.aval
    dtype = getattr(aval, "dtype", None)
    if dtype is None or not jnp.issubdtype(dtype, np.integer) or aval.ndim > 1:
        return None
    if isinstance(atom, Literal):
        return np.asarray(atom.val, dtype)
    made = part(jaxpr, [], [atom])
    read = _inputs(made)
    concrete = all(v in values and not isinstance(values[v], jax.core.Tracer) for v in read)
    if not concrete or len(made.eqns) > _MOST_EQUATIONS or made.effects:
        return None
    closed = ClosedJaxpr(made, [values.get(v) for v in made.constvars])
    with jax.ensure_compile_time_eval():
        return np.asarray(jaxpr_as_fun(closed)()[0])


def _inputs(jaxpr: Jaxpr) -> set[Var]:
    """The variables that it reads and does not make."""
    made = {v for eqn in jaxpr.eqns for v in eqn.outvars}
    read: Iterator[Any] = (v for eqn in jaxpr.eqns for v in eqn.invars)
    return {v for v in (*read, *jaxpr.outvars) if isinstance(v, Var)} - made
