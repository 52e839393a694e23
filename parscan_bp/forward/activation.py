"""Steps that are an elementwise function of an affine map of the carry: x' = f(W x + b).

Read from the jaxpr. Every value that depends on the carry is either affine in it, or a function of
the numbers of one affine value, each of its own: of the last such value on the way, y. A step of
another kind is refused, and the primitive named.

What is elementwise may be elementwise in several values at once: ``v - 1`` is affine, and both it
and ``max(v, 1)`` are functions of v. So a value remembers its *lineage*, the affine values of which
it is a function number by number, the first one before the others; where two values meet, they are
functions of the last one that both remember.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var

from parscan_bp.jaxprs.hijax import kind_of
from parscan_bp.jaxprs.primitive_kinds import (
    ARITHMETIC,
    CALLS,
    CUSTOM_CALLS,
    ELEMENTWISE,
    MOVES,
    SUMS,
)
from parscan_bp.jaxprs.read import needed_equations, shape_of
from parscan_bp.jaxprs.replay import bind, inlined, interpret
from parscan_bp.linearise.body import Body
from parscan_bp.types import Array


@dataclasses.dataclass(frozen=True)
class Value:
    """A value that depends on the carry.

    Attributes:
      lineage: affine values of which it is a function number by number.
      affine: whether it is itself the last of them.
      by: the primitive that made it no affine value, if it is none.
    """

    lineage: tuple[Var, ...]
    affine: bool = True
    by: str = ""


@dataclasses.dataclass(frozen=True, eq=False)
class Activation:
    """A step in two parts, y = W x + b and x' = f(y), for each leaf of the carry.

    Attributes:
      jaxpr: the step ``[*consts, *carry, *x] -> [*carry]``.
      places: for each leaf of the new carry, the variable that is its y.
    """

    jaxpr: ClosedJaxpr
    places: tuple[Var, ...]

    @classmethod
    def of(cls, body: Body) -> Activation:
        """Finds the two parts.

        Raises:
          NotImplementedError: if the step has none, naming what stands in the way.
        """
        closed = inlined(body.jaxpr, CALLS | CUSTOM_CALLS)
        jaxpr, first = closed.jaxpr, body.num_consts
        carry = jaxpr.invars[first : first + body.num_carry]
        values = {v: Value((v,)) for v in carry}
        for eqn in needed_equations(jaxpr):
            found = _result(eqn, [_of(values, v) for v in eqn.invars])
            if found is not None:
                values.update({v: _own(found, v) for v in eqn.outvars})
        outs = jaxpr.outvars[: body.num_carry]
        for k, v in enumerate(outs):
            if _of(values, v) is None:
                raise _refusal(f"leaf {k} of the new carry does not depend on the carry")
        return cls(closed, tuple(values[v].lineage[-1] for v in outs))

    def affine(self, arguments: Sequence[Array]) -> list[Array]:
        """y, for each leaf of the carry."""
        met: dict[Var, Array] = {}
        _run(self.jaxpr, arguments, lambda v, value: met.setdefault(v, value))
        return [met[v] for v in self.places]

    def elementwise(self, y: Sequence[Array], arguments: Sequence[Array]) -> list[Array]:
        """f(y); of the carry among the arguments it does not depend."""
        given = dict(zip(self.places, y, strict=True))
        return _run(self.jaxpr, arguments, lambda v, value: given.get(v, value))[: len(y)]


def _run(closed: ClosedJaxpr, arguments, at: Callable[[Var, Array], Array]) -> list[Array]:
    """The outputs of a jaxpr with ``at(variable, value)`` in the place of each value."""

    def passed(variables, values):
        return [at(v, value) for v, value in zip(variables, values, strict=True)]

    start = passed(closed.jaxpr.invars, arguments)
    return interpret(closed, start, lambda eqn, vs: passed(eqn.outvars, bind(eqn, vs)))


def _of(values: dict[Var, Value], atom: Any) -> Value | None:
    return None if isinstance(atom, Literal) else values.get(atom)


def _own(value: Value, variable: Var) -> Value:
    """A new affine value is the last of its own lineage."""
    if not value.affine:
        return value
    return dataclasses.replace(value, lineage=(*value.lineage, variable))


def _result(eqn: JaxprEqn, operands: Sequence[Value | None]) -> Value | None:
    """What an equation makes of values; ``None`` where it sees none that depends on the carry.

    The lineage of an affine value is yet without itself, see `_own`.
    """
    name = kind_of(eqn)
    moving = [v for v in operands if v is not None]
    if not moving:
        return None
    common = _common([v.lineage for v in moving])
    apart = _is_number_by_number(eqn, operands)
    if all(v.affine for v in moving) and _is_affine(eqn, operands):
        return Value(common if apart else ())
    if name in ELEMENTWISE | ARITHMETIC and apart:
        if common:
            by = next((v.by for v in moving if not v.affine), name)
            return Value(common, False, by)
        raise _refusal(
            f"{name} takes {len(moving)} values that are not, number by number, functions of one "
            "affine map"
        )
    for v in moving:
        if not v.affine:
            raise _refusal(f"{name} mixes the numbers that {v.by} has made")
    if name in MOVES or name in _LINEAR or _is_product_with_constant(eqn, operands):
        return Value(())
    raise _refusal(f"{name} is neither linear nor elementwise")


def _is_number_by_number(eqn: JaxprEqn, operands: Sequence[Value | None]) -> bool:
    """Not, for example, where one number chooses among arrays."""
    pairs = zip(eqn.invars, operands, strict=True)
    return all(v is None or shape_of(a) == shape_of(eqn.outvars[0]) for a, v in pairs)


_LINEAR = frozenset({"reduce_sum", "cumsum", "reduce_window_sum"})


def _is_affine(eqn: JaxprEqn, operands: Sequence[Value | None]) -> bool:
    """Whether an elementwise equation of affine values is affine in the carry."""
    name, moves = kind_of(eqn), [v is not None for v in operands]
    if name in SUMS or name in ("neg", "copy", "convert_element_type", "real", "imag", "conj"):
        return True
    if name == "mul":
        return sum(moves) == 1
    if name == "div":
        return not moves[1]
    if name == "select_n":
        return not moves[0]
    return False


def _is_product_with_constant(eqn: JaxprEqn, operands: Sequence[Value | None]) -> bool:
    """Whether it is a matrix product or convolution, one side of which is a constant."""
    moves = [v is not None for v in operands]
    return kind_of(eqn) in ("dot_general", "conv_general_dilated") and sum(moves) == 1


def _common(lineages: Sequence[tuple[Var, ...]]) -> tuple[Var, ...]:
    """The values with which all lineages begin."""
    shared = []
    for vs in zip(*lineages, strict=False):
        if any(v is not vs[0] for v in vs):
            break
        shared.append(vs[0])
    return tuple(shared)


def _refusal(what: str) -> NotImplementedError:
    return NotImplementedError(
        "forward=FrozenActivations(): the step is no elementwise function of an affine map of the "
        f"carry: {what}; Newton() and FixedPoint() take other steps"
    )
