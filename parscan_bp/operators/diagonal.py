"""A diagonal per map: elementwise steps, activations, linear recurrences."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, final

import jax
import jax.numpy as jnp
import numpy as np

from parscan_bp.operators.banded import Banded
from parscan_bp.operators.base import Cost
from parscan_bp.operators.block_diagonal import BlockDiagonal
from parscan_bp.operators.channel_dense import ChannelDense
from parscan_bp.operators.explicit import Explicit
from parscan_bp.operators.selection import Selection
from parscan_bp.operators.sparse import Sparse
from parscan_bp.sparsity import Pattern
from parscan_bp.sparsity.pattern import on_device
from parscan_bp.types import Array


@final
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Diagonal(Explicit):
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
    elementwise: ClassVar = True
    held_by: ClassVar = {
        BlockDiagonal: lambda op: BlockDiagonal(op.diagonal[..., None, None]),
        Banded: lambda op: Banded(op.diagonal[..., None, :], 0),
        Selection: lambda op: op.selection(),
        ChannelDense: lambda op: ChannelDense(op.diagonal[..., None, None], op._pattern),
        Sparse: lambda op: Sparse(op.diagonal, op._pattern),
    }

    @property
    def shape(self):
        self.leaves()
        return (self.diagonal.shape[-1],) * 2

    def matvec(self, v):
        self.check_vector(v)
        return jnp.multiply(self.diagonal, v)

    def transpose(self):
        return self

    def as_dense(self):
        # A selection, not a product with the unit matrix: inf * 0 would be NaN.
        eye = jnp.eye(self.shape[0], dtype=bool)
        return jnp.where(eye, jnp.asarray(self.diagonal)[..., None], 0)

    def cost(self) -> Cost:
        return self.cost_of(self.shape[0])

    @property
    def _pattern(self) -> Pattern:
        return Pattern.diagonal(self.shape[0])

    def selection(self) -> Selection:
        """Each output selects its own place."""
        source = on_device(np.arange(self.shape[0], dtype=np.int32)[:, None])
        return Selection(source, self.diagonal[..., None], self._pattern)
