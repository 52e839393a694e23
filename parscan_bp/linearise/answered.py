"""A step whose comparisons with its carry are answered once, by the forward pass.

A running best is compared with a value that the step makes: ``maximum(best, now)``. The best was
stored, and what the derivative is made of makes ``now`` again, in other programs than the forward
pass, and not in one: the transposed Jacobians, and what parameters and inputs receive. Each rounds
in its own way. Where two values are equal in the forward pass (an input that comes again), one
program finds the one larger and another the other; the derivative is lost, or there twice. So the
forward pass keeps its answers, and whatever linearises the step reads them as inputs. All else is
made again as before.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import jax
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from parscan_bp.jaxprs.decisions import compared_with, compares, decides, is_answer
from parscan_bp.jaxprs.differentiated import values_after_derivative
from parscan_bp.jaxprs.hijax import kind_of
from parscan_bp.jaxprs.primitive_kinds import EXTREMA, PLAIN_CALLS
from parscan_bp.jaxprs.read import (
    differentiable,
    is_differentiable,
    needed_equations,
    part,
    variables,
    with_known,
)
from parscan_bp.jaxprs.replay import bind, evaluate, inlined, interpret
from parscan_bp.linearise.body import Body
from parscan_bp.types import Array

AnyLinear = TypeVar("AnyLinear", bound=Any)


@dataclasses.dataclass(frozen=True, eq=False)
class Answered:
    """A step in two forms; the answers are booleans and indices.

    Attributes:
      asked: the step with its answers, ``[*consts, *carry, *x] -> [*carry, *y, *answers]``.
      told: the step that reads them, ``[*consts, *carry, *x, *answers] -> [*carry, *y]``.
      count: number of answers.
    """

    asked: Body
    told: Body
    count: int

    @classmethod
    def of(cls, body: Body) -> Answered | None:
        """The forms of a step; ``None`` where it compares nothing it makes with its carry."""
        closed, n, m = body.jaxpr, body.num_consts, body.num_carry
        if not any(map(compares, closed.jaxpr.eqns)):
            return None
        if any(kind_of(eqn) in PLAIN_CALLS for eqn in closed.jaxpr.eqns):
            closed = inlined(closed, PLAIN_CALLS)
        found = compared_with(closed.jaxpr, closed.jaxpr.invars[n : n + m])
        questions = {id(eqn): _Question(eqn) for eqn in found if _Question.fits(eqn)}
        count = sum(len(q.kept) for q in questions.values())
        if not count:
            return None

        def asked(*values):
            answers: list[Array] = []

            def apply(eqn, values):
                outs = bind(eqn, values)
                if id(eqn) in questions:
                    answers.extend(questions[id(eqn)].answers(values, outs))
                return outs

            return [*interpret(closed, values, apply), *answers]

        def told(*values):
            values, answers = values[: len(values) - count], iter(values[len(values) - count :])

            def apply(eqn, values):
                question = questions.get(id(eqn))
                return bind(eqn, values) if question is None else question.told(values, answers)

            return interpret(closed, values, apply)

        first = jax.make_jaxpr(asked)(*closed.in_avals)
        kinds = first.out_avals[len(first.out_avals) - count :]
        second = jax.make_jaxpr(told)(*closed.in_avals, *kinds)
        reads = Body(second, n, m, body.only)
        # Nothing has a derivative by an answer, and to read it is no other step.
        reads.__dict__.update(reach=body.reach, unbatchable=body.unbatchable)
        return cls(Body(first, n, m), reads, count)


def answered(linear: AnyLinear) -> tuple[AnyLinear, Answered | None]:
    """The linearisation of a step by what the step itself makes, that reads its answers."""
    found = Answered.of(linear.body)
    return linear if found is None else dataclasses.replace(linear, body=found.told), found


class _Question:
    """An equation that compares.

    Attributes:
      eqn: the equation.
      kept: the variables whose values are kept: results without a derivative, and what the
        derivative of the others asks.
      push: the tangents of these others.
    """

    def __init__(self, eqn: JaxprEqn):
        self.eqn = eqn
        self.kept = [v for v in eqn.outvars if is_answer(eqn, v)]
        self.push: ClosedJaxpr | None = None
        self._operands = variables(eqn.invars)
        self._own = len(self.kept)
        if self._own < len(eqn.outvars):
            self.values, self.later = _values_of(eqn, self._operands)
            push = _pushed(eqn, self._operands)
            asked = _asked(push.jaxpr, len(self._operands))
            # The same question may be asked twice; one answer is kept.
            self.push = ClosedJaxpr(with_known(push.jaxpr, asked), push.consts)
            self.kept += dict.fromkeys(asked.values())

    @staticmethod
    def fits(eqn: JaxprEqn) -> bool:
        """Whether its answers are at hand; those of a loop or a branch are inside."""
        return kind_of(eqn) in EXTREMA or all(is_answer(eqn, v) for v in eqn.outvars)

    def _moving(self, values: Sequence[Any]) -> list[Any]:
        return [a for v, a in zip(self.eqn.invars, values, strict=True) if isinstance(v, Var)]

    def answers(self, values: Sequence[Array], outs: Sequence[Array]) -> list[Array]:
        """What is kept, of operands and results of the equation."""
        pairs = zip(self.eqn.outvars, outs, strict=True)
        found = [a for v, a in pairs if is_answer(self.eqn, v)]
        if self.push is not None:
            jaxpr, n = self.push.jaxpr, len(self._operands)
            first = part(jaxpr, jaxpr.invars[:n], self.kept[self._own :])
            found += evaluate(ClosedJaxpr(first, self.push.consts), self._moving(values))
        return list(map(_as_bits, found))

    def told(self, values: Sequence[Array], answers: Iterator[Array]) -> list[Array]:
        """The results, that have their derivatives by these answers, of which it takes its own."""
        mine = [_from_bits(next(answers), v) for v in self.kept]
        if self.push is None:
            return mine
        jaxpr, asked = self.push.jaxpr, self.kept[self._own :]
        rest = part(jaxpr, [*jaxpr.invars, *asked], jaxpr.outvars, asked)
        run = functools.partial(evaluate, ClosedJaxpr(rest, self.push.consts))
        made = iter(
            _with_tangents(self.values, self.later, run)(self._moving(values), mine[self._own :])
        )
        first = iter(mine)
        return [next(first if is_answer(self.eqn, v) else made) for v in self.eqn.outvars]


def _as_bits(answer: Array) -> Array:
    """A number that is an answer, as one that has no tangent."""
    if not is_differentiable(jax.typeof(answer)):
        return answer
    return lax.bitcast_convert_type(answer, f"int{8 * answer.dtype.itemsize}")


def _from_bits(bits: Array, like: Any) -> Array:
    dtype = like.aval.dtype
    return bits if bits.dtype == dtype else lax.bitcast_convert_type(bits, dtype)


def _of_operands(eqn: JaxprEqn, operands: Sequence[Array]) -> list[Array]:
    """The results of an equation that have derivatives, of the values of its variables."""
    given = iter(operands)
    outs = bind(eqn, [v.val if isinstance(v, Literal) else next(given) for v in eqn.invars])
    return [a for v, a in zip(eqn.outvars, outs, strict=True) if not is_answer(eqn, v)]


def _values_of(eqn: JaxprEqn, operands: Sequence[Var]) -> tuple[ClosedJaxpr, ClosedJaxpr]:
    """The results of an equation that have derivatives; and as a rule of its own returns them."""
    avals = [v.aval for v in operands]
    closed = jax.make_jaxpr(lambda *values: _of_operands(eqn, values))(*avals)
    moving = differentiable(avals)
    return closed, values_after_derivative(closed, moving)


def _with_tangents(
    values: ClosedJaxpr, later: ClosedJaxpr, push: Callable
) -> Callable[..., list[Array]]:
    """``(operands, answers) -> results``, whose tangents are ``push`` of all and of tangents.

    Args:
      values, later: see `_values_of`.
      push: of operands, their tangents and the answers.
    """

    @jax.custom_jvp
    def results(operands, answers):
        return evaluate(values, operands)

    @results.defjvp
    def jvp(primals, tangents):
        pairs = zip(primals[0], tangents[0], strict=True)
        ts = [t for a, t in pairs if is_differentiable(jax.typeof(a))]
        again = results(*primals) if later is values else evaluate(later, primals[0])
        return again, push([*primals[0], *ts, *primals[1]])

    return results


def _pushed(eqn: JaxprEqn, operands: Sequence[Var]) -> ClosedJaxpr:
    """The tangents of an equation's results, of its variables and their tangents."""

    def tangents(operands, ts):
        given = iter(ts)
        moving = [next(given) if is_differentiable(a) else None for a in avals]

        def results(floats):
            floats = iter(floats)
            pairs = zip(operands, moving, strict=True)
            return _of_operands(eqn, [a if t is None else next(floats) for a, t in pairs])

        floats = [a for a, t in zip(operands, moving, strict=True) if t is not None]
        return jax.jvp(results, (floats,), ([t for t in moving if t is not None],))[1]

    avals = [v.aval for v in operands]
    return jax.make_jaxpr(tangents)(avals, [a for a in avals if is_differentiable(a)])


def _asked(push: Jaxpr, count: int) -> dict[Var, Var]:
    """The answers on which tangents depend, of operands alone, each with the first of its kind."""
    moving = set(push.invars[count:])
    first: dict[Any, Var] = {}
    asked: dict[Var, Var] = {}
    for eqn in needed_equations(push):
        if moving.intersection(variables(eqn.invars)):
            moving.update(eqn.outvars)
        elif decides(eqn):
            places = tuple(v if isinstance(v, Var) else str(v) for v in eqn.invars)
            for k, v in enumerate(eqn.outvars):
                if is_answer(eqn, v):
                    asked[v] = first.setdefault((eqn.primitive, str(eqn.params), places, k), v)
    return asked
