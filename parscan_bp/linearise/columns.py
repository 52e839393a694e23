"""An explicit Jacobian, by automatic differentiation: one tangent per column."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from parscan_bp.linearise.answered import answered
from parscan_bp.linearise.base import Joined
from parscan_bp.linearise.per_step import PerStep
from parscan_bp.operators import Dense, Diagonal, Operator
from parscan_bp.structure import find_structure, is_holomorphic
from parscan_bp.trees import first_of, replace_at
from parscan_bp.types import Array


@dataclasses.dataclass(frozen=True)
class ByColumns(Joined):
    """An explicit Jacobian from one tangent per column that the structure leaves.

    A step over (B, H) arrays with independent rows takes H tangents, not B*H; an
    elementwise step takes one.

    Attributes:
      diagonal: whether the step is known to be elementwise.
    """

    kind = "columns"

    diagonal: bool = False

    def answered(self):
        return answered(self)

    def restricted(self, carry):
        places = [self.body.float_carry.index(k) for k in carry]
        body, layout = self.body.restricted(carry), self.layout.restricted(places)
        return dataclasses.replace(self, body=body, layout=layout)

    def after_derivative(self, moving):
        body = self.body.after_derivative(moving)
        if body is self.body:
            return self
        # What couples entries is found anew: the values of a rule need not couple as its tangents.
        found = find_structure(body.jaxpr, body.num_consts, body.num_carry)
        was = self.layout.keep_complex
        keep = was and is_holomorphic(body.jaxpr.jaxpr, body.num_carry)
        diagonal = self.diagonal and found.diagonal and keep == was
        layout = dataclasses.replace(self.layout, batch_axes=found.batch_axes, keep_complex=keep)
        return dataclasses.replace(self, body=body, layout=layout, diagonal=diagonal)

    def adjoint_operator(self, steps, active=None):
        def one(consts, varying):
            rows = self._rows(consts, varying)
            return Diagonal(rows) if self.diagonal else Dense(rows)

        return stack_of_operators(one, list(steps.consts), [*steps.carry, *steps.x])

    def _rows(self, consts, varying):
        """A_t = J^T: row i holds the derivatives of every output by input i."""
        column, size = columns_of(self, consts, varying), sum(self.layout.features)
        if self.diagonal:
            return column(jnp.ones(size, self.layout.dtype))
        columns = self.body.mapped(column)(jnp.eye(size, dtype=self.layout.dtype))
        return jnp.moveaxis(columns, 0, -2)


def columns_of(
    linear: Joined, consts: Sequence[Array], varying: Sequence[Array]
) -> Callable[[Array], Array]:
    """J of one step as a function of a direction, the same for all rows: ``(n,) -> (*batch, n)``.

    Args:
      linear: says which leaves of the carry move, and how they are joined.
      consts: loop-invariant values of its body.
      varying: carry and input of the step.
    """
    body, layout, n_carry = linear.body, linear.layout, linear.body.num_carry
    carry, x = varying[:n_carry], varying[n_carry:]

    def new_carry(floats):
        new, _ = body(consts, replace_at(carry, body.float_carry, floats), x)
        return [new[k] for k in body.float_carry]

    floats = [carry[k] for k in body.float_carry]
    _, push = jax.linearize(new_carry, floats)

    def column(direction):
        direction = jnp.broadcast_to(direction, (*layout.batch_shape, direction.size))
        tangents = layout.split(direction, cotangent=False)
        # Inside shard_map a tangent varies over the mesh axes of its primal.
        tangents = [t + jnp.zeros_like(c) for t, c in zip(tangents, floats, strict=True)]
        return layout.join(push(tangents), cotangent=False)

    return column


def stack_of_operators(
    one: Callable[..., Operator], fixed: Sequence[Array], stacked: Sequence[Array]
) -> Operator:
    """The operators ``one(fixed, x)`` of every step as one stack, `Operator.aligned`.

    A leaf that is the same for all steps stays shared if it has no batch axes.
    """
    steps = PerStep.of(one, fixed, first_of(stacked))
    operator, n, flags = steps.of_each(fixed, stacked), stacked[0].shape[0], iter(steps.varies)

    def scanned(leaf, ndim):
        if next(flags) or leaf.ndim == ndim:
            return leaf
        return jnp.broadcast_to(leaf, (n, *leaf.shape))

    # Of a single step all stack axes are batch axes: now the scanned one leads in each leaf.
    return operator.map_leaves(scanned).aligned()
