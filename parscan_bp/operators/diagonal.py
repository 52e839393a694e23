"""A diagonal per map: elementwise steps, activations, linear recurrences."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, final

import jax
import jax.numpy as jnp

from parscan_bp.operators.base import Cost, Operator
from parscan_bp.types import Array


@final
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Diagonal(Operator):
    """(A v)_i = diagonal_i v_i.

    Args:
      diagonal: (..., n).

    Raises:
      ValueError: if ``diagonal`` has no axes, when its `shape` is first needed.

    Source: BPPSA appendix E, eq. 11 (the gates' diagonal factors).

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.operators import Diagonal
      >>> Diagonal(jnp.array([2.0, 3.0])).matvec(jnp.array([1.0, 10.0])).tolist()
      [2.0, 30.0]
    """

    diagonal: Array

    core_ndims: ClassVar = {"diagonal": 1}

    @property
    def shape(self):
        self.leaves()
        return (self.diagonal.shape[-1],) * 2

    def matvec(self, v):
        self._check_vector(v)
        return jnp.multiply(self.diagonal, v)

    def transpose(self):
        return self

    def as_dense(self):
        # A selection, not a product with the unit matrix: inf * 0 would be NaN.
        eye = jnp.eye(self.shape[0], dtype=bool)
        return jnp.where(eye, jnp.asarray(self.diagonal)[..., None], 0)

    def cost(self) -> Cost:
        return self._cost(self.shape[0])
