"""What each array of a program is made of, and the way back to where a bad one arose."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal

from parscan_bp.diagnose.derivatives import Some, of_equation, pull, push
from parscan_bp.diagnose.levels import FINE, worst
from parscan_bp.jaxprs.hijax import kind_of
from parscan_bp.jaxprs.primitive_kinds import ELEMENTWISE, SELECTIONS
from parscan_bp.jaxprs.read import is_inexact
from parscan_bp.jaxprs.replay import bind


class MadeArray(NamedTuple):
    """An array that an equation has made: a result, its tangent, or a cotangent of an operand.

    Attributes:
      eqn: the equation.
      position: of the result, or of the operand.
      array: the array.
      sources: what it was made of: variables, and the arrays that stand for them.
    """

    eqn: JaxprEqn
    position: int
    array: Any
    sources: Sequence[tuple[Any, Any]]


class MadeArrays:
    """For each variable of a program an array, or none: its value, tangent or cotangent."""

    def __init__(self, variables: Sequence[Any] = (), arrays: Sequence[Any] = ()) -> None:
        self._of = dict(zip(variables, arrays, strict=True))
        self.makers: dict[Any, list[MadeArray]] = defaultdict(list)

    def read(self, atoms: Sequence[Any]) -> list[Any]:
        """What stands for these variables, literals being themselves; ``None`` for nothing."""
        return [a.val if isinstance(a, Literal) else self._of.get(a) for a in atoms]

    def read_derivatives(self, atoms: Sequence[Any]) -> list[Any]:
        """The same of tangents and cotangents, of which a literal has none."""
        return [None if isinstance(a, Literal) else self._of.get(a) for a in atoms]

    def give(self, variable: Any, array: Any) -> None:
        """Something that no equation has made is added to that of a variable."""
        before = self._of.get(variable)
        self._of[variable] = array if before is None else before + array

    def write(self, variable: Any, made: MadeArray) -> None:
        """What an equation has made is that of a variable."""
        self._of[variable] = made.array
        self.makers[variable] = [made]

    def add(self, variable: Any, made: MadeArray) -> None:
        """What an equation has made is a part of that of a variable."""
        self.give(variable, made.array)
        self.makers[variable].append(made)

    def origin(self, variable: Any, threshold: float) -> Any:
        """Where what is bad about the array of a variable arose: a `MadeArray`, or an input.

        The way back goes to the worst of the sources, as long as it is bad. The `MadeArray` is the
        last on it that is worse than all its sources: of infinity - infinity what made the
        infinite, and the difference only if that came in from outside. ``None`` if the array is
        fine.
        """
        level, at = worst(self.read([variable])[0], threshold)
        made: MadeArray | None = None
        while level > FINE and not isinstance(variable, Literal) and self.makers[variable]:
            here = max(self.makers[variable], key=lambda m: worst(m.array, threshold, at)[0])
            if worst(here.array, threshold, at)[0] < level:
                break  # the sum of several, or what was given
            found = [
                (*worst(array, threshold, at if _is_entry_by_entry(here, array) else None), source)
                for source, array in here.sources
                if array is not None and is_inexact(source)
            ]
            worse, there, source = max(found, key=lambda f: f[0], default=(FINE, 0, variable))
            made = here if worse < level else made
            level, at, variable = worse, there, source
        return made or (None if level == FINE else variable)


def _is_entry_by_entry(made: MadeArray, source: Any) -> bool:
    """Whether each entry was made of the entry of the source at its place."""
    return kind_of(made.eqn) in ELEMENTWISE and jnp.shape(source) == jnp.shape(made.array)


def values_of(closed: ClosedJaxpr, values: Sequence[Any]) -> MadeArrays:
    """The values of all variables of a program."""
    jaxpr = closed.jaxpr
    found = MadeArrays([*jaxpr.constvars, *jaxpr.invars], [*closed.consts, *values])
    for eqn in jaxpr.eqns:
        operands = found.read(eqn.invars)
        sources = _chosen(eqn, operands, operands)
        for k, (v, made) in enumerate(zip(eqn.outvars, bind(eqn, operands), strict=True)):
            found.write(v, MadeArray(eqn, k, made, sources))
    return found


def tangents_of(closed: ClosedJaxpr, values: MadeArrays, tangents: Some) -> MadeArrays:
    """The tangents of all variables, for those of the inputs."""
    found = MadeArrays(closed.jaxpr.invars, tangents)
    for eqn in closed.jaxpr.eqns:
        operands, given = values.read(eqn.invars), found.read_derivatives(eqn.invars)
        sources = _chosen(eqn, operands, given)
        made = push(of_equation(eqn), operands, given)
        for k, (v, tangent) in enumerate(zip(eqn.outvars, made, strict=True)):
            if tangent is not None:
                found.write(v, MadeArray(eqn, k, tangent, sources))
    return found


def cotangents_of(closed: ClosedJaxpr, values: MadeArrays, cotangents: Some) -> MadeArrays:
    """The cotangents of all variables, for those of the outputs."""
    found = MadeArrays()
    for v, given in zip(closed.jaxpr.outvars, cotangents, strict=True):
        if given is not None and not isinstance(v, Literal):
            found.give(v, given)
    for eqn in reversed(closed.jaxpr.eqns):
        outs = found.read_derivatives(eqn.outvars)
        if all(ct is None for ct in outs):
            continue
        sources = list(zip(eqn.outvars, outs, strict=True))
        made = pull(of_equation(eqn), values.read(eqn.invars), outs)
        for k, (v, cotangent) in enumerate(zip(eqn.invars, made, strict=True)):
            if cotangent is not None and not isinstance(v, Literal):
                found.add(v, MadeArray(eqn, k, cotangent, sources))
    return found


def _chosen(eqn: JaxprEqn, operands: Sequence[Any], arrays: Sequence[Any]) -> list[tuple[Any, Any]]:
    """The operands with what stands for them; of cases to select from, only what is selected."""
    if kind_of(eqn) not in SELECTIONS:
        return list(zip(eqn.invars, arrays, strict=True))
    which = jnp.asarray(operands[0]).astype(int)
    return [
        (v, None if a is None else jnp.where(which == k, a, jnp.zeros_like(a)))
        for k, (v, a) in enumerate(zip(eqn.invars[1:], arrays[1:], strict=True))
    ]
