"""The certificate of a trajectory: how far it is from the true one, asked of every method alike.

With e_t = x_t - x*_t, the residuals r_t = x_t - f(x_{t-1}) and Jacobians J_t of f at x_{t-1},

    e_t = J_t e_{t-1} + r_t + q_t,        |q_t| = O(|e_{t-1}|^2),

so that L e = r to first order, L being the lower bi-diagonal matrix of the recurrence: the linear
model. A certificate measures what r makes of it, and whether the errors are small enough for it.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

from parscan_bp.forward.base import Carry, Inputs, Recurrence
from parscan_bp.jaxprs.control_flow import run_inside
from parscan_bp.jaxprs.hijax import kind_of
from parscan_bp.jaxprs.primitive_kinds import CALLS, CONTROL_FLOW, CUSTOM_CALLS
from parscan_bp.jaxprs.read import called, cut_to, inner_jaxprs, walk
from parscan_bp.jaxprs.replay import bind, interpret
from parscan_bp.trees import largest
from parscan_bp.types import Array, PyTree

MakeResults = Callable[[JaxprEqn, Sequence[Array]], Sequence[Array]]
"""What makes an equation's results of its operands."""


class Certificate(NamedTuple):
    """What is said of a trajectory, in the units of its carry.

    Attributes:
      error: how far it is from the true one, from its residuals; infinite where the linear model
        does not hold, NaN where anything is not finite.
      floor: how far rounding alone may take two evaluations of the recurrence apart.
    """

    error: Array
    floor: Array


def magnitude(tree: PyTree) -> Array:
    """The largest magnitude in a tree; NaN if there is one."""
    return largest(jax.tree.map(jnp.abs, tree))


def are_all(flags: PyTree) -> Array:
    """Whether all arrays of a tree are true everywhere."""
    return functools.reduce(operator.and_, map(jnp.all, jax.tree.leaves(flags)))


def step_program(recurrence: Recurrence) -> tuple[ClosedJaxpr, jax.tree_util.PyTreeDef]:
    """The step on flat leaves [*carry, *inputs], and the structure of what it returns.

    What only its outputs beside the carry depend on is left out: it may have no derivative.
    """
    first = jax.tree.map(lambda a: a[0], recurrence.inputs)
    closed, shape = jax.make_jaxpr(recurrence.step, return_shape=True)(recurrence.init, first)
    needed = cut_to(closed.jaxpr, len(closed.jaxpr.outvars))
    return ClosedJaxpr(needed, closed.consts), jax.tree.structure(shape)


def interpreted(recurrence: Recurrence, apply: MakeResults) -> Callable[[Carry, Inputs], Carry]:
    """The step, each of its equations applied in another way."""
    closed, tree = step_program(recurrence)

    def step(carry, inputs):
        return jax.tree.unflatten(tree, interpret(closed, jax.tree.leaves((carry, inputs)), apply))

    return step


def with_true_derivative(recurrence: Recurrence) -> Callable[[Carry, Inputs], Carry]:
    """The step with the derivatives that its values have.

    Rules that a step brings along, as for a slope that stands for the true one, and derivatives
    that were stopped tell a gradient what to be, at any depth. The error knows nothing of them. Of
    the derivative itself nothing may be left out later, as its kinks would be.
    """
    return interpreted(recurrence, _by_values)


def _by_values(eqn: JaxprEqn, values: Sequence[Array]) -> Sequence[Array]:
    name = kind_of(eqn)
    if name == "stop_gradient":
        return list(values)
    if name in CALLS or name in CUSTOM_CALLS:
        return interpret(called(eqn), values, _by_values)
    if name in CONTROL_FLOW and any(map(_has_other_slopes, inner_jaxprs(eqn))):
        return run_inside(eqn, values, lambda inner, values: interpret(inner, values, _by_values))
    return bind(eqn, values)


def _has_other_slopes(jaxpr: Jaxpr) -> bool:
    """Whether anything in it has a derivative that need not be that of its values."""
    names = {kind_of(eqn) for eqn in walk(jaxpr)}
    return not names.isdisjoint({"stop_gradient", *CUSTOM_CALLS})
