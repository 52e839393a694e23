"""Derivatives of a program, or of one equation, for the leaves that have any."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, JaxprEqn

from parscan_bp.jaxprs.read import is_inexact
from parscan_bp.jaxprs.replay import bind, evaluate
from parscan_bp.trees import replace_at
from parscan_bp.types import Array

Some = Sequence[Array | None]
"""Tangents or cotangents of all leaves, with ``None`` where there are none."""


class FlatFunction(NamedTuple):
    """A function of arrays.

    Attributes:
      call: ``values -> results``.
      inputs, outputs: variables, or what has their types.
    """

    call: Callable[[Sequence[Any]], Sequence[Any]]
    inputs: Sequence[Any]
    outputs: Sequence[Any]


def of_jaxpr(closed: ClosedJaxpr) -> FlatFunction:
    """A whole program."""
    run = functools.partial(evaluate, closed)
    return FlatFunction(run, closed.jaxpr.invars, closed.jaxpr.outvars)


def of_equation(eqn: JaxprEqn) -> FlatFunction:
    """One equation."""
    return FlatFunction(functools.partial(bind, eqn), eqn.invars, eqn.outvars)


def push(program: FlatFunction, values: Sequence[Any], tangents: Some) -> list[Array | None]:
    """The tangents of the results."""
    moving = [k for k, t in enumerate(tangents) if t is not None]
    outs = _floats(program.outputs)
    none: list[Array | None] = [None] * len(program.outputs)
    if not moving or not outs:
        return none
    primals = [jnp.asarray(values[k]) for k in moving]
    made = jax.jvp(_part(program, values, moving, outs), primals, [tangents[k] for k in moving])
    return replace_at(none, outs, made[1])


def pull(program: FlatFunction, values: Sequence[Any], cotangents: Some) -> list[Array | None]:
    """The cotangents of the operands."""
    moving, outs = _floats(program.inputs), _floats(program.outputs)
    none: list[Array | None] = [None] * len(program.inputs)
    if not moving or not outs:
        return none
    primals = [jnp.asarray(values[k]) for k in moving]
    results, back = jax.vjp(_part(program, values, moving, outs), *primals)
    given = [
        jnp.zeros_like(v) if cotangents[k] is None else cotangents[k]
        for k, v in zip(outs, results, strict=True)
    ]
    return replace_at(none, moving, back(given))


def _floats(atoms: Sequence[Any]) -> list[int]:
    return [k for k, atom in enumerate(atoms) if is_inexact(atom)]


def _part(program: FlatFunction, values, moving, outs) -> Callable[..., list[Any]]:
    """The program as a function of these operands alone, which returns these results."""

    def call(*primals):
        made = program.call(replace_at(values, moving, primals))
        return [made[k] for k in outs]

    return call
