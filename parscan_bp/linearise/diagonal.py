"""The diagonal of a Jacobian, and nothing else of it."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from parscan_bp.linearise.base import Joined
from parscan_bp.linearise.columns import columns_of, stack_of_operators
from parscan_bp.operators import Diagonal


@dataclasses.dataclass(frozen=True)
class DiagonalPart(Joined):
    """The diagonal matrix of J_ii = d x'_i / d x_i, whatever the rest of the Jacobian is.

    A column at a time, of which one entry is kept: time of the whole Jacobian, memory of the carry.
    A model of the step, for iterations that correct it; never its derivative.
    """

    kind = "columns"

    def adjoint_operator(self, steps, active=None):
        def one(consts, varying):
            column, size = columns_of(self, consts, varying), sum(self.layout.features)

            def entry(i):
                return column(jax.nn.one_hot(i, size, dtype=self.layout.dtype))[..., i]

            return Diagonal(jnp.moveaxis(lax.map(entry, jnp.arange(size)), 0, -1))

        return stack_of_operators(one, list(steps.consts), [*steps.carry, *steps.x])
