"""Partial evaluation of primitives that stand for a program: that of the program, which is JAX's.

Reverse mode separates what depends on tangents, which it transposes, from what is known. Left to
itself, JAX takes all results of a primitive for unknown as soon as one operand is, so that the
states of a loop that carries values beside their tangents would be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import JaxprEqn
from jax.interpreters import partial_eval as pe

from parscan_bp.jaxprs.stage import to_be_traced


def as_equation(program: Callable[..., Sequence[Any]], types: Sequence[Any]) -> JaxprEqn:
    """A call of a program, made by `jax.jit`, whose rules for partial evaluation are JAX's own."""
    with to_be_traced():
        (eqn,) = jax.make_jaxpr(program)(*types).eqns
    return eqn


def separate(eqn: JaxprEqn, trace: Any, tracers: Sequence[Any]) -> list[Any]:
    """The results of an `as_equation` where some of the operands are known.

    Args:
      eqn: the equation.
      trace, tracers: as JAX gives them to a rule of `partial_eval.custom_partial_eval_rules`.
    """
    return pe.custom_partial_eval_rules[eqn.primitive](trace, *tracers, **eqn.params)


def separate_within(program: JaxprEqn, saveable: Any, unknown, instantiated, eqn: JaxprEqn) -> Any:
    """What becomes of an equation of a jaxpr that is separated.

    Args:
      program: an `as_equation` of what the equation does.
      saveable, unknown, instantiated, eqn: as JAX gives them to a rule of
        `partial_eval.partial_eval_jaxpr_custom_rules`.
    """
    eqn = eqn.replace(primitive=program.primitive, params=program.params)
    rule = pe.partial_eval_jaxpr_custom_rules[program.primitive]
    return rule(saveable, unknown, instantiated, eqn)
