"""Equations that make again what another one has made."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax.extend.core import Jaxpr, Literal, Var

from parscan_bp.jaxprs.read import inner_jaxprs


def without_repeats(jaxpr: Jaxpr) -> Jaxpr:
    """The same program, that makes each value once.

    Equations that call programs, or have effects, stay as they are.
    """
    first: dict[Any, list[Var]] = {}
    same: dict[Var, Var] = {}

    def read(atom: Any) -> Any:
        return atom if isinstance(atom, Literal) else same.get(atom, atom)

    eqns = []
    for eqn in jaxpr.eqns:
        eqn = eqn.replace(invars=list(map(read, eqn.invars)))
        key = None if eqn.effects or inner_jaxprs(eqn) else _key(eqn)
        outs = None if key is None else first.setdefault(key, eqn.outvars)
        if outs is None or outs is eqn.outvars:
            eqns.append(eqn)
        else:
            same.update(zip(eqn.outvars, outs, strict=True))
    return jaxpr.replace(eqns=eqns, outvars=list(map(read, jaxpr.outvars)))


def _key(eqn: Any) -> Any:
    """By which two equations are the same; ``None`` if that cannot be told."""
    # Of constants the bits: 0 and -0 are equal, and a NaN is not.
    operands = tuple(
        (str(v.aval), np.asarray(v.val).tobytes()) if isinstance(v, Literal) else v
        for v in eqn.invars
    )
    key = eqn.primitive, operands, tuple(sorted(eqn.params.items(), key=lambda item: item[0]))
    try:
        hash(key)
    except TypeError:
        return None
    return key
