"""Kinks of a step within reach of an error: what the slopes of the other side make of it.

A linear model has the slopes of the side that a trajectory is on. Where an error may reach a kink,
the step departs from it by q_t, which the error's size decides (`balls`),

    e_t = J_t e_{t-1} + r_t + u_t + q_t,    |q_t| <= Q_t(|e_{t-1}|),

so that q is one more right-hand side: from the reach of r and u follows Q, from Q what it adds to
the reach, and so on until Q is no more than what was allowed for: then by induction over t nothing
is beyond it. Isolated kinks are done in a round or two. Where a trajectory stays at a kink whose
other side grows, Q does not end, and nothing is certified; of a jump, Q is as large as the jump.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import JaxprEqn

from parscan_bp.forward.ball import Ball
from parscan_bp.forward.balls import evaluate_balls, is_opaque
from parscan_bp.forward.base import Carry, Recurrence, over_steps
from parscan_bp.forward.certificate import are_all, step_program
from parscan_bp.forward.rounding import is_whole
from parscan_bp.forward.smooth_rules import is_smooth
from parscan_bp.jaxprs.hijax import kind_of
from parscan_bp.jaxprs.interpret import Interpreter
from parscan_bp.jaxprs.read import is_inexact
from parscan_bp.jaxprs.replay import varying_with
from parscan_bp.types import Array

ALLOWED = 1.25
"""By which more Q is allowed for than was found, as later rounds find a little more."""

ROUNDS = 4
"""The most there are; kinks that another one's errors reach take one more."""


class Departure(NamedTuple):
    """What kinks add to an error.

    Attributes:
      added: by which the largest error grows; infinite where that does not end.
      rounds: int32, how many there were, 0 if no kink is in reach.
    """

    added: Array
    rounds: Array


def kinks_of(recurrence: Recurrence) -> list[str]:
    """The primitives of a step that have kinks or jumps, or of which that is not known."""
    closed, _ = step_program(recurrence)
    return _found(closed, [True] * len(closed.jaxpr.invars), lambda eqn: not is_smooth(eqn))


def unknown_kinks(jaxpr: Any, carried: Sequence[bool]) -> list[str]:
    """The primitives of a step of which no kink can be told from none.

    Args:
      jaxpr: the step, of what it does to its carry.
      carried: which of its inputs are the carry.
    """
    return _found(jaxpr, carried, lambda eqn: not is_smooth(eqn) and is_opaque(eqn))


def _found(jaxpr: Any, flags: Sequence[bool], asked: Callable[[JaxprEqn], bool]) -> list[str]:
    search = _Search(asked)
    search.run(jaxpr, flags)
    return list(search.found)


class _Search(Interpreter[bool]):
    """True: the value depends on the inputs in question."""

    derivative = False
    prune = False
    bottom = False

    def __init__(self, asked: Callable[[JaxprEqn], bool]) -> None:
        super().__init__()
        self.asked = asked
        self.found: dict[str, None] = {}

    def equation(self, eqn: JaxprEqn, ins: list[bool], live: list[bool]) -> list[bool]:
        if any(map(is_inexact, eqn.invars)) and self.asked(eqn):
            self.found[kind_of(eqn)] = None
        return [True] * len(eqn.outvars)

    def join(self, a: bool, b: bool, name: str) -> bool:
        return a or b


class _Round(NamedTuple):
    """Between two rounds.

    Attributes:
      reach: of each number of the states.
      exact: numbers of the carry that are the true ones at every step.
      departs: Q_t, of the reach.
      closed: whether that is no more than what was allowed for.
      added: what it adds to the base, at most.
      rounds: how many there were.
    """

    reach: Carry
    exact: Any
    departs: Carry
    closed: Array
    added: Array
    rounds: Array


def departure(
    recurrence: Recurrence,
    states: Carry,
    residuals: Carry,
    base: Carry,
    respond: Callable[[Carry], tuple[Carry, Array]],
) -> Departure:
    """What kinks within reach add to the largest error of a trajectory.

    Args:
      recurrence, states, residuals: see `Certificate`.
      base: for each leaf, how far errors reach without them.
      respond: what the recurrence makes of magnitudes Q_t, of each number, and whether that holds.
    """
    zeros = jax.tree.map(lambda r: jnp.zeros_like(r.real), residuals)
    exact = jax.tree.map(functools.partial(_may_be_exact, recurrence), states, residuals)
    reach = jax.tree.map(lambda b, a: b.astype(a.dtype) + jnp.zeros_like(a), base, zeros)
    measure = functools.partial(_measured, recurrence, states)

    def looked_at(reach, exact, allowed, added, rounds):
        departs, still = measure(reach, exact)
        within = jax.tree.map(operator.le, departs, allowed)
        kept = jax.tree.map(operator.eq, exact, still)
        open_ = recurrence.on_any(~are_all((within, kept)))
        return _Round(reach, still, departs, ~open_, added, rounds)

    def goes_on(at):
        return ~at.closed & (at.rounds < ROUNDS) & jnp.isfinite(at.added)

    def one_round(at):
        allowed = jax.tree.map(lambda q: ALLOWED * q, at.departs)
        more, holds = respond(allowed)
        added = recurrence.largest(jnp.stack([jnp.max(a) for a in jax.tree.leaves(more)]).max())
        added = jnp.where(holds, added, jnp.inf)
        reach = jax.tree.map(lambda b, a: b.astype(a.dtype) + a, base, more)
        return looked_at(reach, at.exact, allowed, added, at.rounds + 1)

    none, count = varying_with((jnp.zeros_like(jax.tree.leaves(base)[0]), jnp.int32(0)), states)
    first = looked_at(reach, exact, zeros, none, count)
    end = lax.while_loop(goes_on, one_round, first)
    return Departure(jnp.where(end.closed, end.added, jnp.inf), end.rounds)


def _may_be_exact(recurrence: Recurrence, x: Array, r: Array) -> Array:
    """Of a leaf, which numbers are whole and without residual at every step, as counts are."""
    apart = ~jnp.all(is_whole(x) & (r == 0), axis=0)
    return ~recurrence.on_any(apart)


def _measured(recurrence: Recurrence, states: Carry, reach: Carry, exact: Any):
    """Q_t, and what is still exact if what is taken to be so was, of all steps.

    What is not exact any more is departed from without end, which the next round, without it,
    mends.
    """
    closed, tree = step_program(recurrence)
    none = jax.tree.map(lambda a: jnp.zeros_like(a.real), recurrence.init)
    shut = jax.tree.map(lambda e, a: jnp.where(e, 0, a), exact, reach)
    shut = dataclasses.replace(recurrence, init=none).entering(shut)

    def step(carry, radius, inputs):
        pairs = zip(jax.tree.leaves(carry), jax.tree.leaves(radius), strict=True)
        balls = [Ball(a, r.astype(a.real.dtype)) for a, r in pairs]
        made = evaluate_balls(closed, [*balls, *jax.tree.leaves(inputs)])
        return [b.bent for b in made], [b.radius == 0 for b in made]

    entering = recurrence.entering(states)
    bent, stays = over_steps(step, recurrence.length, entering, shut, recurrence.inputs)
    moved = jax.tree.unflatten(tree, [~jnp.all(s, axis=0) for s in stays])
    still = jax.tree.map(lambda e, m: e & ~recurrence.on_any(m), exact, moved)
    return jax.tree.unflatten(tree, bent), still
