"""A block-diagonal matrix per map: independent groups of neighbouring features."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, final

import jax
import jax.numpy as jnp

from parscan_bp.operators.arithmetic import apply_matrix
from parscan_bp.operators.base import Cost, Operator
from parscan_bp.types import Array


@final
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class BlockDiagonal(Operator):
    """(A v)_(k b + i) = sum_j blocks_kij v_(k b + j): k blocks of order b, contiguous.

    Args:
      blocks: (..., k, b, b); the map acts on n = k b features.

    Raises:
      ValueError: if ``blocks`` has fewer than three axes; if the blocks are not square, when the
        `shape` is first needed.

    Source: the block-diagonal transposed Jacobians of independent groups or heads; BPPSA
    section 3.3 is the general sparse case.

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.operators import BlockDiagonal
      >>> op = BlockDiagonal(jnp.array([[[1.0, 2.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]]))
      >>> op.matvec(jnp.array([1.0, 10.0, 3.0, 4.0])).tolist()
      [21.0, 10.0, 4.0, 3.0]
    """

    blocks: Array

    core_ndims: ClassVar = {"blocks": 3}

    @property
    def shape(self):
        self.leaves()
        count, rows, cols = self.blocks.shape[-3:]
        if rows != cols:
            raise ValueError(
                f"blocks: got shape {tuple(self.blocks.shape)}; square blocks (..., k, b, b) "
                "are wanted"
            )
        return (count * rows,) * 2

    @property
    def block(self) -> int:
        """b, the order of one block."""
        return self.blocks.shape[-1]

    def matvec(self, v):
        self._check_vector(v)
        groups = jnp.reshape(v, (*v.shape[:-1], v.shape[-1] // self.block, self.block))
        # The block axis is a batch axis that the matrices and the groups share.
        product = apply_matrix(self.blocks, groups).astype(jnp.result_type(self.blocks, v))
        return product.reshape(*product.shape[:-2], self.shape[0])

    def transpose(self):
        return BlockDiagonal(jnp.swapaxes(self.blocks, -1, -2))

    def as_dense(self):
        n, b = self.shape[0], self.block
        # (k, b, 1, b) against the unit matrix of order k over axes (k, 1, k', 1).
        eye = jnp.eye(n // b, dtype=bool)[:, None, :, None]
        spread = jnp.where(eye, jnp.asarray(self.blocks)[..., None, :], 0)
        return spread.reshape(*self.stack_shape, n, n)

    def cost(self) -> Cost:
        return self._cost(2 * self.shape[0] * self.block)
