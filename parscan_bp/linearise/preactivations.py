"""Where parameters and inputs meet the carry: what a sweep can hand to the pullback.

A *pre-activation* of a step is the result of an operation on something that depends on the carry
and on something that depends on parameters or inputs alone, such as ``h @ w`` or ``a + x @ u``. The
vector-Jacobian product with respect to the carry makes the cotangents of all of them on its way.
Once they are known, parameters and inputs have theirs from the operations before them: no
activation is differentiated a second time.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from jax.extend.core import Literal

from parscan_bp.jaxprs.read import live_variables
from parscan_bp.jaxprs.replay import bind, interpret
from parscan_bp.linearise.body import Active, Body
from parscan_bp.types import Array


@dataclasses.dataclass(frozen=True)
class Preactivations:
    """The pre-activations of a body for a choice of active parameters and inputs.

    Attributes:
      body: the scan body.
      active: what is differentiated.
    """

    body: Body
    active: Active

    @functools.cached_property
    def _variables(self) -> set[Any]:
        """The results of equations on something moving and something given."""
        body, jaxpr = self.body, self.body.jaxpr.jaxpr
        a, b = body.num_consts, body.num_consts + body.num_carry
        moving = {jaxpr.invars[a + k] for k in body.float_carry}
        given = {*self.active.of_consts(jaxpr.invars[:a]), *self.active.of_x(jaxpr.invars[b:])}
        met: set[Any] = set()
        for eqn in jaxpr.eqns:
            operands = {v for v in eqn.invars if not isinstance(v, Literal)}
            if operands & moving:
                moving.update(eqn.outvars)
                met.update(eqn.outvars if operands & given else ())
            elif operands & given:
                given.update(eqn.outvars)
        # A leaf of the new carry that does not depend on the carry is a pre-activation, too.
        new = [jaxpr.outvars[k] for k in body.float_carry]
        met.update(v for v in new if not isinstance(v, Literal) and v in given)
        wanted = [k in body.float_carry for k in range(len(jaxpr.outvars))]
        return met & live_variables(jaxpr, wanted)

    def new_carry(
        self,
        consts: Sequence[Array],
        carry: Sequence[Array],
        x: Sequence[Array],
        at: Callable[[Array], Array],
    ) -> list[Array]:
        """The float leaves of the new carry; ``at`` is applied to the pre-activations, in order."""

        def passed(variables, values):
            pairs = zip(variables, values, strict=True)
            return [at(value) if v in self._variables else value for v, value in pairs]

        closed = self.body.jaxpr
        start = passed(closed.jaxpr.invars, [*consts, *carry, *x])
        new = interpret(closed, start, lambda eqn, vs: passed(eqn.outvars, bind(eqn, vs)))
        return [new[k] for k in self.body.float_carry]

    def values(
        self,
        consts: Sequence[Array],
        carry: Sequence[Array],
        x: Sequence[Array],
        known: Sequence[Array] | None = None,
    ) -> list[Array]:
        """The value of every pre-activation.

        Args:
          consts, carry, x: of the step.
          known: the same values, to be read in the place of each one by what comes after it. The
            result then depends on ``consts`` and ``x`` as they enter since the last one.
        """
        found: list[Array] = []
        read = None if known is None else iter(known)

        def at(value):
            found.append(value)
            return value if read is None else next(read)

        self.new_carry(consts, carry, x, at)
        return found
