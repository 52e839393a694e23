"""Dense blocks between channels on a sparse pattern between positions: convolutions' products."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, final

import jax
import jax.numpy as jnp

from parscan_bp.operators.arithmetic import apply_matrix
from parscan_bp.operators.base import Cost, Operator
from parscan_bp.operators.sparse import Sparse, fill_in_coordinates, first, from_numbers
from parscan_bp.sparsity import Pattern
from parscan_bp.sparsity.plan import pick
from parscan_bp.types import Array


@final
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class ChannelDense(Operator):
    """(A v)_(r, i) = sum over blocks k in row r, channels j, of blocks_kij v_(cols_k, j).

    Features are positions times channels, channels last (NHWC order). The plan of a product needs
    one index per pair of blocks that meet, where `Sparse` needs one per pair of numbers.

    Args:
      blocks: (..., nnz, i, j), one block of i rows and j columns per entry of the pattern.
      pattern: which positions meet; static.
      rows, cols: (nnz,), row and column of each block; filled in where they are not given.

    Raises:
      ValueError: if ``blocks`` does not have one block per entry, when the `shape` is first needed.

    Source: parscan_bp's own; BPPSA Algorithms 2 to 5 write the same matrix of a convolution entry
    by entry.

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.operators import ChannelDense
      >>> from parscan_bp.sparsity import Pattern
      >>> pattern = Pattern.from_coordinates([0, 1], [1, 0], (2, 2))
      >>> op = ChannelDense(jnp.array([[[1.0, 2.0]], [[3.0, 4.0]]]), pattern)
      >>> op.shape, op.matvec(jnp.array([1.0, 1.0, 10.0, 10.0])).tolist()
      ((2, 4), [30.0, 7.0])
    """

    blocks: Array
    pattern: Pattern = dataclasses.field(metadata={"static": True})
    # `__post_init__` fills them in.
    rows: Array = None  # type: ignore[assignment]
    cols: Array = None  # type: ignore[assignment]

    core_ndims: ClassVar = {"blocks": 3, "rows": 1, "cols": 1}
    patterned: ClassVar = True
    multilinear: ClassVar = True
    held_by: ClassVar = {Sparse: lambda op: op.entries()}

    def __post_init__(self):
        fill_in_coordinates(self, self.blocks)
        super().__post_init__()

    @property
    def shape(self):
        self.leaves()
        count, rows, cols = self.blocks.shape[-3:]
        if count != self.pattern.nnz:
            raise ValueError(
                f"blocks: got shape {tuple(self.blocks.shape)}; the pattern has "
                f"{self.pattern.nnz} entries, one block (..., nnz, i, j) for each is wanted"
            )
        return (self.pattern.shape[0] * rows, self.pattern.shape[1] * cols)

    @property
    def channels(self) -> tuple[int, int]:
        """(i, j), rows and columns of one block."""
        return self.blocks.shape[-2], self.blocks.shape[-1]

    @property
    def dtype(self):
        return jnp.result_type(self.blocks)

    def matvec(self, v):
        self.check_vector(v)
        dtype = jnp.result_type(self.blocks, v)
        positions = jnp.reshape(v, (*v.shape[:-1], self.pattern.shape[1], self.channels[1]))
        terms = apply_matrix(self.blocks, pick(positions, first(self.cols), axis=-2))
        total = jnp.zeros((*terms.shape[:-2], self.pattern.shape[0], terms.shape[-1]), terms.dtype)
        total = total.at[..., first(self.rows), :].add(terms, indices_are_sorted=True)
        return total.reshape(*total.shape[:-2], self.shape[0]).astype(dtype)

    def transpose(self):
        pattern, order = self.pattern.transposed
        return ChannelDense(jnp.swapaxes(pick(self.blocks, order, axis=-3), -1, -2), pattern)

    def as_dense(self):
        (i, j), (rows, cols) = self.channels, self.pattern.shape
        # (..., i, j, nnz) into (..., i, j, rows, cols), then positions before channels.
        blocks = jnp.moveaxis(self.blocks, -3, -1)
        dense = jnp.zeros((*blocks.shape[:-1], rows, cols), self.dtype)
        dense = dense.at[..., first(self.rows), first(self.cols)].set(blocks)
        dense = jnp.moveaxis(dense, (-4, -3), (-3, -1))
        dense = dense.reshape(*dense.shape[:-4], rows * i, cols * j)
        return jnp.broadcast_to(dense, (*self.stack_shape, *self.shape))

    def cost(self) -> Cost:
        i, j = self.channels
        return self.cost_of(2 * self.pattern.nnz * i * j)

    def entries(self) -> Sparse:
        """Number by number."""
        return from_numbers(self.blocks, 3, *self.pattern.expand(*self.channels))
