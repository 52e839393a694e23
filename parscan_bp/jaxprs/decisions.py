"""Where a program decides by what was stored and by what it makes again.

The derivative of a maximum goes to the operand that equals the result. Both come from one
evaluation in the program that was traced. Where the result is read from what another program
stored, and the operand is made again, they differ by a rounding: neither operand is the maximum
then, and the derivative is lost. So whatever is compared must come from one evaluation, and a
variable that is compared with what it was made of is either stored with the answer, or made again
with all of it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from jax.extend.core import Jaxpr, JaxprEqn, Var, jaxprs_in_params

from parscan_bp.jaxprs.primitive_kinds import COMPARING, DIFFERENCES, EXTREMA, UNROUNDED
from parscan_bp.jaxprs.read import is_inexact, needed_equations, variables, walk


def decides(eqn: JaxprEqn) -> bool:
    """Whether a rounding of an operand can change a result altogether, or a derivative.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> jaxpr = jax.make_jaxpr(lambda x: (jnp.exp(x), x > 1.0, jnp.floor(x)))(1.0)
      >>> [decides(eqn) for eqn in jaxpr.eqns]
      [False, True, True]
    """
    if not any(map(is_inexact, eqn.invars)):
        return False
    if eqn.primitive.name in COMPARING or not all(map(is_inexact, eqn.outvars)):
        return True
    return any(decides(e) for inner in jaxprs_in_params(eqn.params) for e in walk(inner))


def compares(eqn: JaxprEqn) -> bool:
    """Whether it, or what its derivative is made of, decides."""
    if eqn.primitive.name in EXTREMA or decides(eqn):
        return True
    return any(compares(e) for inner in jaxprs_in_params(eqn.params) for e in walk(inner))


def mixed(jaxpr: Jaxpr, held: Collection[Var]) -> list[tuple[JaxprEqn, set[Var]]]:
    """The equations that decide by what is held and by what that was made of, made again.

    Args:
      jaxpr: the program; its inputs are what they were.
      held: variables of it whose values are read, as another program stored them.

    Returns:
      Each of them with the held variables in question.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> def f(best, x):
      ...     now = jnp.cos(x)
      ...     new = jnp.minimum(best, now)
      ...     return now == new, best == new
      >>> jaxpr = jax.make_jaxpr(f)(1.0, 2.0).jaxpr
      >>> new = jaxpr.eqns[1].outvars
      >>> [eqn.invars[0] in jaxpr.invars for eqn, _ in mixed(jaxpr, new)]
      [False]
    """
    # Sets of held variables are the bits of an integer.
    bit = {v: 1 << k for k, v in enumerate(held)}
    makes = _makes(jaxpr, bit)
    read: dict[Any, int] = dict(bit)  # of each value, what is held that it follows from
    again: dict[Any, int] = {}  # and what is held that shares with it what it was made of
    found = []
    for eqn in needed_equations(jaxpr, held):
        operands = variables(eqn.invars)
        reads, agains = (_union(of.get(v, 0) for v in operands) for of in (read, again))
        if reads & agains and decides(eqn):
            found.append((eqn, {v for v, b in bit.items() if b & reads & agains}))
        for v in eqn.outvars:
            if v not in bit:
                read[v] = reads
                again[v] = agains if _is_unrounded(eqn) else agains | makes.get(v, 0)
    return found


def compared_with(jaxpr: Jaxpr, held: Collection[Var]) -> list[JaxprEqn]:
    """The equations that decide between what is held, as it is, and what is rounded here.

    Only such count as results with a derivative depend on.

    Args:
      jaxpr: the program.
      held: those of its inputs that are held.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> def f(best, x):
      ...     return jnp.maximum(best, x), jnp.maximum(best, jnp.cos(x)), best > 0
      >>> jaxpr = jax.make_jaxpr(f)(1.0, 2.0).jaxpr
      >>> [eqn.primitive.name for eqn in compared_with(jaxpr, jaxpr.invars[:1])]
      ['max']
    """
    as_it_is, rounded, found = set(held), set(), []
    parts: dict[Var, list[Var]] = {}  # of a difference
    wanted = jaxpr.replace(outvars=[v for v in jaxpr.outvars if is_inexact(v)])
    for eqn in needed_equations(wanted):
        operands = variables(eqn.invars)
        both = [*operands, *(u for v in operands for u in parts.get(v, ()))]
        meet = not as_it_is.isdisjoint(both) and not rounded.isdisjoint(both)
        if meet and compares(eqn):
            found.append(eqn)
        if eqn.primitive.name in DIFFERENCES:
            parts.update(dict.fromkeys(eqn.outvars, operands))
        if not _is_unrounded(eqn):
            rounded.update(eqn.outvars)
            continue
        for of in (as_it_is, rounded):
            if not of.isdisjoint(operands):
                of.update(eqn.outvars)
    return found


def _makes(jaxpr: Jaxpr, bit: dict[Any, int]) -> dict[Any, int]:
    """Of each variable, which of those with a bit follow from it, or are it."""
    makes: dict[Any, int] = dict(bit)
    for eqn in reversed(jaxpr.eqns):
        made = _union(makes.get(v, 0) for v in eqn.outvars)
        for v in variables(eqn.invars):
            makes[v] = makes.get(v, 0) | made
    return makes


def _is_unrounded(eqn: JaxprEqn) -> bool:
    """Whether equal operands give equal results in any program."""
    return eqn.primitive.name in UNROUNDED or not any(map(is_inexact, eqn.outvars))


def _union(sets: Any) -> int:
    union = 0
    for bits in sets:
        union |= bits
    return union
