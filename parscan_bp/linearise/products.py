"""From a step to its transposed Jacobian without forming it: for the sequential sweep."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.tree_util import Partial

from parscan_bp.cpu.grouped import Grouped
from parscan_bp.jaxprs.min_cut import Cut
from parscan_bp.linearise.active import NOTHING, Active
from parscan_bp.linearise.ahead import distinct_results, made_ahead
from parscan_bp.linearise.answered import answered
from parscan_bp.linearise.base import Kind, Linearisation, Steps
from parscan_bp.linearise.body import Body
from parscan_bp.linearise.completed import Completed, of_fewest
from parscan_bp.linearise.inlets import Distinct, Inlets
from parscan_bp.linearise.per_step import Known, PerStep
from parscan_bp.linearise.residuals import ResidualMap
from parscan_bp.operators import MatrixFree
from parscan_bp.trees import eval_shape, first_of, replace_at
from parscan_bp.types import Array

MOST_AUX = 2
"""Most numbers that a loop stores for the pullback, as a multiple of those that it carries."""


@dataclasses.dataclass(frozen=True)
class StepMap:
    """The linear map of one step.

    Attributes:
      linear: ``v -> (A v, aux)``; aux is what a pullback is made from, or ``None``.
      known: values that it would make and that are stored already.
      is_stored: whether a loop stores aux.
    """

    linear: Partial
    known: Known = ()
    is_stored: bool = True

    @classmethod
    def of(cls, linear: Partial, shapes, known: Known = ()) -> StepMap:
        """Aux that is far more than the vector is sooner made again, of all vectors at once.

        Args:
          linear: a result of `made_ahead`, of one vector to its product, and aux.
          shapes: of the leaves of the vector.
          known: see `StepMap`.
        """
        aux = _numbers(distinct_results(linear, len(shapes)))
        return cls(linear, known, aux <= MOST_AUX * _numbers(shapes))


@dataclasses.dataclass(frozen=True)
class ByProducts(Linearisation):
    """Matrix-free: the linear map of each step as JAX's linearisation gives it.

    The elementwise derivatives of a stretch are evaluated as one batch; what is left for
    the sequential loop is their product with a vector. The cotangents of the step's inlets,
    which that product makes on its way, are kept for the pullback, or else made of all vectors of
    the stretch at once.
    """

    kind: ClassVar[Kind] = "matrix-free"
    is_products = True
    can_keep = True

    body: Body

    # Most bytes of a leaf that is carried beside its like. Measured on elementwise steps: for
    # larger ones the copy costs more than it saves.
    small_cotangent: ClassVar[int] = 2**9
    small_tangent: ClassVar[int] = 2**9

    def answered(self):
        return answered(self)

    def restricted(self, carry):
        return dataclasses.replace(self, body=self.body.restricted(carry))

    def after_derivative(self, moving):
        body = self.body.after_derivative(moving)
        return self if body is self.body else dataclasses.replace(self, body=body)

    def _grouped(self, *, cotangent: bool) -> Grouped:
        avals = [self.body.carry_avals[k] for k in self.body.float_carry]
        most = self.small_cotangent if cotangent else self.small_tangent
        return Grouped(tuple(a.shape for a in avals), tuple(a.dtype for a in avals), most)

    def pack(self, leaves, *, cotangent):
        return self._grouped(cotangent=cotangent).join(leaves)

    def unpack(self, vector, *, cotangent):
        return self._grouped(cotangent=cotangent).split(vector)

    def adjoint_operator(self, steps, active=None, *, all_aux=False):
        """See `Linearisation`.

        Args:
          steps, active: see there.
          all_aux: whether aux is there though a loop had better not store it: it is for all
            vectors at once.
        """
        return self._operator(steps, type(self)._pulled, active, cotangent=True, all_aux=all_aux)

    def tangent_operator(self, steps):
        return self._operator(steps, type(self)._pushed, None, cotangent=False, all_aux=False)

    def residuals(self, step: Steps, active: Active) -> ResidualMap:
        """What a forward pass keeps of each step, and how `adjoint_operator` follows from it.

        Nothing where that is mere arithmetic on the carries, which are kept anyway.

        Args:
          step: one step, without an axis of steps.
          active: see `adjoint_operator`.
        """
        shapes = self._shapes(step.carry)
        maps = self._maps(type(self)._pulled, active, *step.shared_and_own, cotangent=True)
        cut = Cut.of(maps.varying, maps.shared)
        return ResidualMap(active, maps, cut, self._stack(shapes, cotangent=True))

    def pullback(self, steps, new_carry_cts, y_cts, active, aux=None):
        if aux is None:
            return super().pullback(steps, new_carry_cts, y_cts, active)
        return self._pull(active)(steps, aux)

    @functools.cached_property
    def _pull(self) -> Callable[[Active], Callable]:
        """The pullback from the cotangents of the inlets; see `_map`."""
        return functools.cache(self._make_pull)

    def _make_pull(self, active):
        inlets = Inlets(self.body, active)

        @functools.partial(jax.jit, inline=True)
        def pull(steps, aux):
            carry, x = list(steps.carry), list(steps.x)
            # Not `lax.stop_gradient`: the pullback is differentiated itself, for second
            # derivatives.
            mapped = self.body.mapped
            known = mapped(functools.partial(inlets.values, steps.consts))(carry, x)

            def values(consts, xs):
                def one(carry, x, xs, known):
                    full = active.insert_consts(steps.consts, consts)
                    return inlets.values(full, carry, active.insert_x(x, xs), known)

                return mapped(one)(carry, x, xs, known)

            consts, xs = active.of_consts(steps.consts), active.of_x(steps.x)
            return jax.vjp(values, consts, xs)[1](aux.all())

        return pull

    @functools.cached_property
    def _map(self) -> Callable[..., Any]:
        """``step_map(self, step, shapes, active)`` as `PerStep` takes it, of grouped leaves.

        Always the same function, so that JAX keeps its trace.
        """
        return functools.cache(self._make_map)

    def _make_map(self, step_map, active, *, cotangent):
        grouped = self._grouped(cotangent=cotangent)

        @jax.jit
        def one(fixed, values):
            (consts, extra), (carry, x, new_carry) = fixed, values
            step = Steps(consts, carry, x, new_carry, extra)
            made = step_map(self, step, self._shapes(carry), active)
            return Partial(_OnGroups(grouped, made.is_stored), made.linear), made.known

        return one

    def _shapes(self, carry: Sequence[Array]):
        return eval_shape(lambda: [carry[k] for k in self.body.float_carry])

    def _operator(self, steps: Steps, step_map, active, *, cotangent, all_aux) -> MatrixFree:
        """The stack of the maps ``step_map(self, step, shapes, active)``."""
        shared, own = steps.shared_and_own
        maps = self._maps(step_map, active, shared, first_of(own), cotangent=cotangent)
        shapes = first_of([steps.carry[k] for k in self.body.float_carry])
        stack = self._stack(shapes, cotangent=cotangent)
        return stack(maps.of_each(shared, own), maps.varies, all_aux)

    def _maps(self, step_map, active, shared, own, *, cotangent: bool) -> PerStep:
        one = self._map(step_map, active, cotangent=cotangent)
        return of_fewest(PerStep.of(one, shared, own))

    def _stack(self, shapes, *, cotangent: bool) -> Callable[..., MatrixFree]:
        """``(maps, which of their leaves are stacked, all_aux) -> operator``."""
        vector = eval_shape(self._grouped(cotangent=cotangent).join, shapes)

        def stack(linear: Partial, varies, all_aux: bool):
            on_groups: Any = linear.func
            on_groups = on_groups.func if isinstance(on_groups, Completed) else on_groups
            if not (all_aux or on_groups.is_stored):
                linear = Partial(_drop_aux, linear)
            how = {"has_aux": True, "in_turn": self.body.unbatchable is not None}
            return MatrixFree(linear, varies, vector, codomain=vector, **how)

        return stack

    def _pushed(self, step: Steps, shapes, active: None) -> StepMap:
        """``v -> (J v, None)`` for one step."""
        floats = [step.carry[k] for k in self.body.float_carry]

        def new_carry(floats):
            carry = replace_at(step.carry, self.body.float_carry, floats)
            new, _ = self.body(step.consts, carry, step.x)
            return [new[k] for k in self.body.float_carry]

        new, push = jax.linearize(new_carry, floats)
        return StepMap(made_ahead(Partial(_without_aux, push), shapes), self._known(step, new))

    def _pulled(self, step: Steps, shapes, active: Active | None) -> StepMap:
        """``v -> (J^T v, cotangents of the inlets)`` for one step.

        ``None`` in place of these where they are not all that a pullback needs.
        """
        met = NOTHING if active is None or active.y else active
        inlets = Inlets(self.body, met)
        floats = [step.carry[k] for k in self.body.float_carry]
        values = eval_shape(inlets.values, step.consts, step.carry, step.x)
        zeros = [jnp.zeros_like(a) for a in values]

        def new_carry(floats, added):
            carry, each = replace_at(step.carry, self.body.float_carry, floats), iter(added)
            return inlets.new_carry(step.consts, carry, step.x, lambda v: lax.add(v, next(each)))

        new, push = jax.linearize(new_carry, floats, zeros)
        pull = Partial(lambda push, v: jax.linear_transpose(push, shapes, zeros)(v), push)
        made = StepMap.of(made_ahead(pull, shapes), shapes, self._known(step, new))
        arranged = Partial(_distinct_aux if met is active else _drop_aux, made.linear)
        return dataclasses.replace(made, linear=arranged)

    def _known(self, step: Steps, new: Sequence[Array]) -> Known:
        """The new carry was stored: what follows from it alone is not made again."""
        return [(v, step.new_carry[k]) for v, k in zip(new, self.body.float_carry, strict=True)]


@dataclasses.dataclass(frozen=True, eq=False)
class _OnGroups:
    """A function of leaves, with aux beside its result, as one of grouped leaves."""

    grouped: Grouped
    is_stored: bool

    def __call__(self, linear, v):
        out, aux = linear(self.grouped.split(v))
        return self.grouped.join(out), aux


def _numbers(shapes: Sequence[Any]) -> int:
    return sum(math.prod(a.shape) for a in shapes)


def _without_aux(linear, v):
    """linear(v) and nothing beside it."""
    return linear(v), None


def _distinct_aux(linear, v):
    out, aux = linear(v)
    return out, Distinct.of(aux)


def _drop_aux(linear, v):
    return linear(v)[0], None
