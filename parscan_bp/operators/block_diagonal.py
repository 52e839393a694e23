"""A block-diagonal matrix per map: independent groups of neighbouring features."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, final

import jax
import jax.numpy as jnp

from parscan_bp.operators.arithmetic import apply_matrix
from parscan_bp.operators.base import Cost, Structure
from parscan_bp.operators.explicit import Explicit
from parscan_bp.operators.sparse import Sparse, from_numbers
from parscan_bp.sparsity import Pattern
from parscan_bp.types import Array


@final
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class BlockDiagonal(Explicit):
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
    held_by: ClassVar = {Sparse: lambda op: op.entries()}

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

    @property
    def structure(self):
        return Structure(BlockDiagonal, self.block)

    def grouped(self, v):
        return jnp.reshape(v, (*jnp.shape(v)[:-1], jnp.shape(v)[-1] // self.block, self.block))

    def joined(self, v):
        return v.reshape(*v.shape[:-2], self.shape[0])

    def matvec(self, v):
        self.check_vector(v)
        # The block axis is a batch axis that the matrices and the groups share.
        product = apply_matrix(self.blocks, self.grouped(v))
        return self.joined(product.astype(jnp.result_type(self.blocks, v)))

    def transpose(self):
        return BlockDiagonal(jnp.swapaxes(self.blocks, -1, -2))

    def as_dense(self):
        n, b = self.shape[0], self.block
        # (k, b, 1, b) against the unit matrix of order k over axes (k, 1, k', 1).
        eye = jnp.eye(n // b, dtype=bool)[:, None, :, None]
        spread = jnp.where(eye, jnp.asarray(self.blocks)[..., None, :], 0)
        return spread.reshape(*self.stack_shape, n, n)

    def cost(self) -> Cost:
        return self.cost_of(2 * self.shape[0] * self.block)

    def regrouped(self, block: int) -> BlockDiagonal:
        """The same maps in blocks of a multiple of their own order.

        Raises:
          ValueError: if ``block`` is none, or does not divide n.
        """
        n, own = self.shape[0], self.block
        if block < 1 or block % own or n % block:
            raise ValueError(
                f"structure: blocks of order {block} do not hold maps of order {n}"
                + (f" with blocks of order {own}" if own > 1 else "")
            )
        # The new blocks are a stack axis of the operator inside each of them.
        inside = (n // block, block // own, own, own)
        blocks = jnp.reshape(self.blocks, (*self.blocks.shape[:-3], *inside))
        return BlockDiagonal(BlockDiagonal(blocks).as_dense())

    def entries(self) -> Sparse:
        """Number by number."""
        pattern, order = Pattern.diagonal(self.shape[0] // self.block).expand(
            self.block, self.block
        )
        return from_numbers(self.blocks, 3, pattern, order)
