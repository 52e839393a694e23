"""From a step to its transposed Jacobian without forming it: for the sequential sweep."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from parscan_bp.linearise.answered import answered
from parscan_bp.linearise.base import Linearisation, LinearisationKind, Steps
from parscan_bp.linearise.body import NOTHING, Active, Body
from parscan_bp.linearise.linear_step import LinearStep
from parscan_bp.linearise.passes import Grouped, fastest
from parscan_bp.linearise.preactivations import Preactivations
from parscan_bp.measured import measured
from parscan_bp.operators import MatrixFree
from parscan_bp.trees import eval_shape, first_of, replace_at
from parscan_bp.types import Array, PyTree

Stored = list[tuple[Array, Array]]
"""Values that a step makes, each with the same value as its argument holds it."""


@dataclasses.dataclass(frozen=True)
class ByProducts(Linearisation):
    """Matrix-free: the linear map of each step as JAX's linearisation gives it.

    The elementwise derivatives of a stretch are evaluated as one batch; what is left for
    the sequential loop is their product with a vector. The cotangents of the pre-activations, which
    that product makes on its way, are kept for the pullback, or else made of all vectors of the
    stretch at once.

    Attributes:
      body: the step.
      one_function: whether that loop is one function, see `Linearisation.for_one_function`.
    """

    kind: ClassVar[LinearisationKind] = "matrix-free"
    is_products = True
    can_keep = True

    body: Body
    one_function: bool = dataclasses.field(default=False, kw_only=True)

    def answered(self):
        return answered(self)

    def for_one_function(self):
        return dataclasses.replace(self, one_function=True)

    def restricted(self, carry):
        return dataclasses.replace(self, body=self.body.restricted(carry))

    def after_derivative(self, moving):
        body = self.body.after_derivative(moving)
        return self if body is self.body else dataclasses.replace(self, body=body)

    def _grouped(self, *, cotangent: bool) -> Grouped:
        avals = [self.body.carry_avals[k] for k in self.body.float_carry]
        most = 0 if self.one_function else self.most_beside(cotangent=cotangent)
        return Grouped(tuple(a.shape for a in avals), tuple(a.dtype for a in avals), most)

    def most_beside(self, *, cotangent: bool) -> int:
        """Most bytes of a leaf that is carried beside its like: the copy costs more for others."""
        del cotangent
        return measured("cpu")["carried_beside"]["products"]

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
        return self._operator(steps, active, cotangent=True, all_aux=all_aux)

    def tangent_operator(self, steps):
        return self._operator(steps, None, cotangent=False, all_aux=False)

    def _operator(self, steps: Steps, active, *, cotangent, all_aux) -> MatrixFree:
        shared, own = steps.shared_and_own
        step = self.linear_step(shared, first_of(own), active, cotangent=cotangent)
        return step.operator(step.known.of_each(shared, own), all_aux=all_aux)

    @property
    def beside_forward(self) -> ByProducts:
        """What states the linear map of a step whose body is evaluated at the same place."""
        return self

    def linear_step(
        self, shared: PyTree, own: PyTree, active: Active | None, *, cotangent: bool
    ) -> LinearStep:
        """See `Linearisation`; made once, with JAX's settings as they are where that is."""
        types = map(jax.typeof, jax.tree.leaves((shared, own)))
        key = active, cotangent, *(a.update(weak_type=False) for a in types)
        if key not in self._made:
            arguments = shared, own, eval_shape(lambda: [own[0][k] for k in self.body.float_carry])
            traced = jax.jit(functools.partial(self._map, active, cotangent)).trace(*arguments)
            step = LinearStep.of(traced, *arguments, in_turn=self.body.unbatchable is not None)
            grouped = self._grouped(cotangent=cotangent)
            self._made[key] = fastest(step, grouped, one_function=self.one_function)
        return self._made[key]

    @functools.cached_property
    def _made(self) -> dict[Any, LinearStep]:
        return {}

    def _map(self, active, cotangent, shared, own, v):
        """What `LinearStep.of` takes."""
        (consts, extra), (carry, x, new_carry) = shared, own
        step = Steps(consts, carry, x, new_carry, extra)
        if cotangent:
            return self._pulled(step, active, v)
        pushed, stored = self._pushed(step, v)
        return pushed, None, stored

    def pullback(self, steps, new_carry_cts, y_cts, active, aux=None):
        if aux is None:
            return super().pullback(steps, new_carry_cts, y_cts, active)
        return self._pull(active)(steps, aux)

    @functools.cached_property
    def _pull(self) -> Callable[[Active], Callable]:
        """The pullback from the cotangents of the pre-activations. Always the same function, so
        that JAX keeps its trace."""
        return functools.cache(self._make_pull)

    def _make_pull(self, active):
        preactivations = Preactivations(self.body, active)

        @functools.partial(jax.jit, inline=True)
        def pull(steps, aux):
            carry, x = list(steps.carry), list(steps.x)
            # Not `lax.stop_gradient`: the pullback is differentiated itself, for second
            # derivatives.
            mapped = self.body.mapped
            known = mapped(functools.partial(preactivations.values, steps.consts))(carry, x)

            def values(consts, xs):
                def one(carry, x, xs, known):
                    full = active.insert_consts(steps.consts, consts)
                    return preactivations.values(full, carry, active.insert_x(x, xs), known)

                return mapped(one)(carry, x, xs, known)

            consts, xs = active.of_consts(steps.consts), active.of_x(steps.x)
            return jax.vjp(values, consts, xs)[1](aux.all())

        return pull

    def _pushed(self, step: Steps, v: list[Array]) -> tuple[list[Array], Stored]:
        """J v of one step, and what it makes that is stored already."""
        floats = [step.carry[k] for k in self.body.float_carry]

        def new_carry(floats):
            carry = replace_at(step.carry, self.body.float_carry, floats)
            new, _ = self.body(step.consts, carry, step.x)
            return [new[k] for k in self.body.float_carry]

        new, push = jax.linearize(new_carry, floats)
        return push(v), self._stored(step, new)

    def _pulled(
        self, step: Steps, active: Active | None, v: list[Array]
    ) -> tuple[list[Array], PyTree, Stored]:
        """J^T v of one step, cotangents of pre-activations, and what it makes that is also stored.

        ``None`` in place of the second where they are not all that a pullback needs.
        """
        met = NOTHING if active is None or active.y else active
        preactivations = Preactivations(self.body, met)
        floats = [step.carry[k] for k in self.body.float_carry]
        values = eval_shape(preactivations.values, step.consts, step.carry, step.x)
        zeros = [jnp.zeros_like(a) for a in values]

        def new_carry(floats, added):
            carry, each = replace_at(step.carry, self.body.float_carry, floats), iter(added)
            return preactivations.new_carry(
                step.consts, carry, step.x, lambda v: lax.add(v, next(each))
            )

        new, push = jax.linearize(new_carry, floats, zeros)
        pulled, cts = jax.linear_transpose(push, floats, zeros)(v)
        return pulled, cts if met is active else None, self._stored(step, new)

    def _stored(self, step: Steps, new: list[Array]) -> Stored:
        """The new carry: what follows from it alone is not made again."""
        return [(v, step.new_carry[k]) for v, k in zip(new, self.body.float_carry, strict=True)]
