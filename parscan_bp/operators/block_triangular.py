"""A block-triangular matrix per map: what layers that feed the next one have over time."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, final

import jax
import jax.numpy as jnp
import numpy as np

from parscan_bp.operators.arithmetic import apply_matrix, einsum
from parscan_bp.operators.base import Cost, Operator
from parscan_bp.sparsity.plan import pick
from parscan_bp.types import Array


@final
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class BlockTriangular(Operator):
    """(A v)_i = sum_{j >= i} A_ij v_j: k groups of b features, each row of blocks from its own on.

    The transposed Jacobian of k recurrent layers, of which each feeds the next in the same step. A
    product of two is one of these, of k (k + 1) (k + 2) / 6 products of blocks, where as dense
    matrices they take k^3.

    Args:
      blocks: (..., k (k + 1) / 2, b, b): A_11, A_12, ..., A_1k, A_22, ..., A_kk.
      lower: whether the map is the one below the diagonal that has A_ij in row j and column i.

    Raises:
      ValueError: if ``blocks`` has fewer than three axes; when the `shape` is first needed, if the
        blocks are not square, or their number is not k (k + 1) / 2.

    Source: M. Naumov, "Parallel complexity of forward and backward propagation", 2017, equations
    (24) and (26), with the diagonal blocks of a step eliminated.

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.operators import BlockTriangular
      >>> op = BlockTriangular(jnp.array([[[1.0]], [[2.0]], [[3.0]]]))
      >>> op.as_dense().tolist(), op.transpose().matvec(jnp.array([1.0, 10.0])).tolist()
      ([[1.0, 2.0], [0.0, 3.0]], [1.0, 32.0])
    """

    blocks: Array
    lower: bool = dataclasses.field(default=False, metadata={"static": True})

    core_ndims: ClassVar = {"blocks": 3}
    closed: ClassVar = True
    multilinear: ClassVar = True

    @property
    def groups(self) -> int:
        """k, the number of groups."""
        self.leaves()
        count, rows, cols = self.blocks.shape[-3:]
        groups = (math.isqrt(8 * count + 1) - 1) // 2
        if rows != cols or groups * (groups + 1) // 2 != count:
            raise ValueError(
                f"blocks: got shape {tuple(self.blocks.shape)}; k (k + 1) / 2 square blocks "
                "(..., k (k + 1) / 2, b, b) are wanted"
            )
        return groups

    @property
    def shape(self):
        return (self.groups * self.blocks.shape[-1],) * 2

    def _places(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows and columns of the blocks."""
        rows, cols = np.triu_indices(self.groups)
        return (cols, rows) if self.lower else (rows, cols)

    def matvec(self, v):
        self.check_vector(v)
        rows, cols = self._places()
        groups = jnp.reshape(v, (*jnp.shape(v)[:-1], self.groups, self.blocks.shape[-1]))
        terms = apply_matrix(self.blocks, pick(groups, cols, axis=-2))
        total = jnp.zeros((*terms.shape[:-2], *groups.shape[-2:]), terms.dtype)
        total = total.at[..., rows, :].add(terms)
        return total.reshape(*total.shape[:-2], self.shape[0]).astype(
            jnp.result_type(self.blocks, v)
        )

    def transpose(self):
        return BlockTriangular(jnp.swapaxes(self.blocks, -1, -2), not self.lower)

    def as_dense(self):
        rows, cols = self._places()
        k, b = self.groups, self.blocks.shape[-1]
        dense = jnp.zeros((*self.stack_shape, k, k, b, b), self.blocks.dtype)
        dense = dense.at[..., rows, cols, :, :].set(self.blocks)
        return jnp.swapaxes(dense, -3, -2).reshape(*self.stack_shape, k * b, k * b)

    def cost(self) -> Cost:
        count, b, _ = self.blocks.shape[-3:]
        return self.cost_of(2 * count * b * b)

    def product_flops(self, first):
        k = self.groups
        return 2 * (k * (k + 1) * (k + 2) // 6) * self.blocks.shape[-1] ** 3

    def multiplies(self, first):
        """Whether the other one has blocks in the same places."""
        if not isinstance(first, BlockTriangular):
            return False
        return (self.lower, self.blocks.shape[-3:]) == (first.lower, first.blocks.shape[-3:])

    def after(self, first):
        """C_ij = sum_m A_im B_mj over i <= m <= j: column m of A with row m of B, for each m.

        Groups are free axes of a product, not batch axes: three batch axes in another order on both
        sides are what XLA does not compile (jax 0.10 and 0.12, CPU).
        """
        k, b = self.groups, self.blocks.shape[-1]
        rows, cols = np.triu_indices(k)
        # Below the diagonal A_im stands at (m, i), and the factors are met in the other order.
        left, right, spec = self.blocks, first.blocks, "...iab,...jbc->...ijac"
        if self.lower:
            left, right, spec = right, left, "...iab,...jca->...ijcb"
        stack = np.broadcast_shapes(left.shape[:-3], right.shape[:-3])
        grid = jnp.zeros((*stack, k, k, b, b), jnp.result_type(left, right))
        for m in range(k):
            column = pick(left, np.flatnonzero(cols == m), axis=-3)
            row = pick(right, np.flatnonzero(rows == m), axis=-3)
            grid = grid.at[..., : m + 1, m:, :, :].add(einsum(spec, column, row))
        return BlockTriangular(grid[..., rows, cols, :, :], self.lower)
