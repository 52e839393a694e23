"""A full matrix per map."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, final

import jax
import jax.numpy as jnp

from parscan_bp.operators.arithmetic import apply_matrix
from parscan_bp.operators.base import Cost
from parscan_bp.operators.explicit import Explicit
from parscan_bp.types import Array


@final
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Dense(Explicit):
    """(A v)_i = sum_j matrix_ij v_j.

    Args:
      matrix: (..., rows, cols), not necessarily square.

    Raises:
      ValueError: if ``matrix`` has fewer than two axes.

    Source: BPPSA eq. 3 (the transposed Jacobian as a matrix).

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.operators import Dense
      >>> Dense(jnp.array([[1.0, 2.0], [3.0, 4.0]])).matvec(jnp.ones(2)).tolist()
      [3.0, 7.0]
    """

    matrix: Array

    core_ndims: ClassVar = {"matrix": 2}

    @property
    def shape(self):
        self.leaves()
        return tuple(self.matrix.shape[-2:])

    def matvec(self, v):
        self.check_vector(v)
        return apply_matrix(self.matrix, v).astype(jnp.result_type(self.matrix, v))

    def transpose(self):
        return Dense(jnp.swapaxes(self.matrix, -1, -2))

    def as_dense(self):
        return self.matrix

    def cost(self) -> Cost:
        rows, cols = self.shape
        return self.cost_of(2 * rows * cols)
