"""Where parameters and inputs meet the carry: what a sweep can hand to the pullback.

An *inlet* of a step is the result of an operation on something that depends on the carry and
on something that depends on parameters or inputs alone, such as ``h @ w`` or ``a + x @ u``.
The vector-Jacobian product with respect to the carry makes the cotangents of all inlets on its
way. Once they are known, parameters and inputs have theirs from the operations before the
inlets: no activation is differentiated a second time.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax
from jax.extend.core import Literal

from parscan_bp.autodiff.active import Active
from parscan_bp.autodiff.body import Body, is_differentiable
from parscan_bp.autodiff.replay import bind
from parscan_bp.structure.jaxprs import live_variables
from parscan_bp.types import Array

AtInlet = Callable[[int, Array], Array]
"""What is put in place of the value of an inlet, given its position and its value."""


@dataclasses.dataclass(frozen=True)
class Inlets:
    """The inlets of a body for a choice of active parameters and inputs.

    Attributes:
      body: the scan body.
      active: what is differentiated.
    """

    body: Body
    active: Active

    @functools.cached_property
    def _found(self) -> tuple[dict[Any, int], dict[int, int]]:
        """Positions of the inlets: by variable, and by leaf of the new carry.

        A leaf of the new carry that does not depend on the carry is an inlet, too.
        """
        body, jaxpr = self.body, self.body.jaxpr.jaxpr
        a, b = body.num_consts, body.num_consts + body.num_carry
        moving = {jaxpr.invars[a + k] for k in body.float_carry}
        given = set(self.active.of_consts(jaxpr.invars[:a])) | set(
            self.active.of_x(jaxpr.invars[b:])
        )
        wanted = [k in body.float_carry for k in range(len(jaxpr.outvars))]
        live = live_variables(jaxpr, wanted)
        inside: dict[Any, int] = {}
        for eqn in jaxpr.eqns:
            operands = {v for v in eqn.invars if not isinstance(v, Literal)}
            if operands & moving:
                moving.update(eqn.outvars)
                if operands & given:
                    met = [v for v in eqn.outvars if v in live and is_differentiable(v.aval)]
                    inside |= {v: len(inside) + i for i, v in enumerate(met)}
            elif operands & given:
                given.update(eqn.outvars)
        out = [k for k in body.float_carry if _is_in(jaxpr.outvars[k], given)]
        return inside, {k: len(inside) + i for i, k in enumerate(out)}

    @property
    def avals(self) -> list[Any]:
        """Types of the values of all inlets."""
        inside, out = self._found
        return [v.aval for v in inside] + [self.body.carry_avals[k] for k in out]

    def new_carry(
        self, consts: Sequence[Array], carry: Sequence[Array], x: Sequence[Array], at: AtInlet
    ) -> list[Array]:
        """The float leaves of the new carry, with ``at`` applied to every inlet."""
        inside, out = self._found
        jaxpr = self.body.jaxpr.jaxpr
        env = dict(zip(jaxpr.constvars, self.body.jaxpr.consts, strict=True))
        env.update(zip(jaxpr.invars, [*consts, *carry, *x], strict=True))

        def read(v):
            return v.val if isinstance(v, Literal) else env[v]

        for eqn in jaxpr.eqns:
            for v, value in zip(eqn.outvars, bind(eqn, [read(v) for v in eqn.invars]), strict=True):
                env[v] = at(inside[v], value) if v in inside else value
        new = {k: read(jaxpr.outvars[k]) for k in self.body.float_carry}
        return [at(out[k], v) if k in out else v for k, v in new.items()]

    def values(
        self, consts: Sequence[Array], carry: Sequence[Array], x: Sequence[Array]
    ) -> list[Array]:
        """The value of every inlet, as it depends on what comes before it since the last one."""
        found: dict[int, Array] = {}

        def at(position, value):
            found[position] = value
            return lax.stop_gradient(value)

        self.new_carry(consts, carry, x, at)
        return [found[k] for k in range(len(found))]


def _is_in(v: Any, variables: set[Any]) -> bool:
    return not isinstance(v, Literal) and v in variables


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Distinct:
    """Values of which some are the same object; each is kept once.

    Attributes:
      kept: the values that differ.
      index: for each value, which of ``kept`` it is.
    """

    kept: list[Array]
    index: tuple[int, ...] = dataclasses.field(metadata={"static": True})

    @classmethod
    def of(cls, values: Sequence[Array]) -> Distinct:
        first = {id(v): v for v in values}
        position = {key: k for k, key in enumerate(first)}
        return cls(list(first.values()), tuple(position[id(v)] for v in values))

    def all(self) -> list[Array]:
        return [self.kept[k] for k in self.index]
