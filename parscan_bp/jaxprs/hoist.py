"""What a step makes of its constants alone, made once, in front of the loop.

A step that transposes a weight matrix, masks it, or takes the exponential of its parameters does so
again in every step. Where `lax.scan` is differentiated, JAX makes such values once; where it is
not, XLA leaves some of them in the loop. So the loop of a solver gets them as constants, too, and
their derivatives are those of what made them, outside of all loops.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero, zero_from_primal
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Var

from parscan_bp.jaxprs.dependence import dependencies
from parscan_bp.jaxprs.hijax import kind_of
from parscan_bp.jaxprs.primitive_kinds import PLAIN_CALLS, VIEWS
from parscan_bp.jaxprs.read import is_inexact, needed_equations, touches_ref, variables
from parscan_bp.jaxprs.replay import evaluate, inlined
from parscan_bp.trees import replace_at
from parscan_bp.types import Array


@dataclasses.dataclass(frozen=True, eq=False)
class Hoist:
    """A step whose constants are more than those that it was traced with.

    Attributes:
      made: the further constants from the others.
      body: the step ``[*consts, *made, *carry, *x]`` that reads them.
    """

    made: ClosedJaxpr
    body: ClosedJaxpr

    @classmethod
    def of_step(cls, step: ClosedJaxpr, num_consts: int) -> Hoist | None:
        """What can be made before the loop; ``None`` if there is nothing.

        Args:
          step: inputs ``[*consts, *carry, *x]``.
          num_consts: number of consts.

        Example:
          >>> import jax, jax.numpy as jnp
          >>> step = jax.make_jaxpr(lambda w, h: jnp.tanh(w.T @ h))(jnp.ones((3, 3)), jnp.ones(3))
          >>> [eqn.primitive.name for eqn in Hoist.of_step(step, 1).body.jaxpr.eqns]
          ['dot_general', 'tanh']
        """
        if any(kind_of(eqn) in PLAIN_CALLS for eqn in step.jaxpr.eqns):
            step = inlined(step, PLAIN_CALLS)
        jaxpr = step.jaxpr
        moved, stay = _moved(jaxpr, num_consts)
        wanted = set(variables(jaxpr.outvars)).union(*(variables(e.invars) for e in stay))
        made = [v for eqn in moved for v in eqn.outvars if v in wanted]
        if not made:
            return None
        consts, rest = jaxpr.invars[:num_consts], jaxpr.invars[num_consts:]
        names = jaxpr.debug_info._replace(arg_names=None)
        body = jaxpr.replace(invars=[*consts, *made, *rest], eqns=stay, debug_info=names)
        names = names._replace(result_paths=None)
        before = jaxpr.replace(invars=consts, outvars=made, debug_info=names)
        before = before.replace(eqns=needed_equations(before))
        return cls(ClosedJaxpr(before, step.consts), ClosedJaxpr(body, step.consts))

    @property
    def num_consts(self) -> int:
        """Number of constants of the traced step."""
        return len(self.made.jaxpr.invars)

    @functools.cached_property
    def read(self) -> tuple[bool, ...]:
        """For each of these, whether the step still reads it."""
        jaxpr = self.body.jaxpr
        wanted = set(variables(jaxpr.outvars)).union(*(variables(e.invars) for e in jaxpr.eqns))
        return tuple(v in wanted for v in jaxpr.invars[: self.num_consts])

    @functools.cached_property
    def _of(self) -> np.ndarray:
        """Whether a further constant (rows) depends on a former one (columns)."""
        return dependencies(self.made)

    @functools.cached_property
    def _make(self):
        return jax.jit(lambda consts: evaluate(self.made, consts))

    def consts(self, consts: Sequence[Array]) -> list[Array]:
        """All constants from those of the traced step."""
        return [*consts, *self._make(list(consts))]

    def args(self, args: Sequence[Array]) -> list[Array]:
        """The arguments of a loop over the body, from those of the traced one."""
        return [*self.consts(args[: self.num_consts]), *args[self.num_consts :]]

    def push(
        self, consts: Sequence[Array], tangents: Sequence[Any]
    ) -> tuple[list[Array], list[Any]]:
        """All constants, and their tangents: zero where the step does not read one any more."""
        moving = [k for k, t in enumerate(tangents) if not isinstance(t, SymbolicZero)]
        made, pushed = jax.jvp(
            lambda *moved: self._make(replace_at(consts, moving, moved)),
            [consts[k] for k in moving],
            [jnp.asarray(tangents[k], jnp.result_type(consts[k])) for k in moving],
        )
        outs = zip(self.made.jaxpr.outvars, self._of[:, moving], strict=True)
        has_tangent = [*self.read, *(is_inexact(v) and bool(of.any()) for v, of in outs)]
        values, ts = [*consts, *made], [*tangents, *pushed]
        return values, [
            t if has else zero_from_primal(value, symbolic_zeros=True)
            for value, t, has in zip(values, ts, has_tangent, strict=True)
        ]


def _moved(jaxpr: Jaxpr, num_consts: int) -> tuple[list[JaxprEqn], list[JaxprEqn]]:
    """The equations to be made before the loop, and those that stay in it, in their order."""
    known, moved = {*jaxpr.constvars, *jaxpr.invars[:num_consts]}, []
    for eqn in jaxpr.eqns:
        invars = variables(eqn.invars)
        if invars and known.issuperset(invars) and not eqn.effects and not touches_ref(eqn):
            moved.append(eqn)
            known.update(eqn.outvars)
    needed: set[Var] = set()
    for eqn in reversed(moved.copy()):
        if kind_of(eqn) in VIEWS and needed.isdisjoint(eqn.outvars):
            moved.remove(eqn)
        else:
            needed.update(variables(eqn.invars))
    return moved, [eqn for eqn in jaxpr.eqns if eqn not in moved]
