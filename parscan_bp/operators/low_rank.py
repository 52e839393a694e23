"""A diagonal and a low-rank part: normalisations and softmax."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, final

import jax
import jax.numpy as jnp

from parscan_bp.operators.arithmetic import multiply_sum
from parscan_bp.operators.base import Cost, Operator
from parscan_bp.types import Array


@final
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class LowRankUpdate(Operator):
    """A = blocks diag(diagonal_k) + left_k right_k^T, k blocks of order n beside each other.

    A vector of k n entries is k groups of n. A matvec takes 4 r n operations per block, where the
    matrix would take 2 n^2.

    Args:
      diagonal: (..., k, n).
      left: (..., k, n, r).
      right: (..., k, n, r).

    Raises:
      ValueError: if an array has too few axes; if the sizes do not fit, when the `shape` is first
        needed.

    Source: standard. Softmax: diag(s) - s s^T; layer norm: diagonal and rank two.

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.operators import LowRankUpdate
      >>> d, ones = jnp.array([[1.0, 2.0]]), jnp.ones((1, 2, 1))
      >>> LowRankUpdate(d, ones, ones).as_dense().tolist()
      [[2.0, 1.0], [1.0, 3.0]]
    """

    diagonal: Array
    left: Array
    right: Array

    core_ndims: ClassVar = {"diagonal": 2, "left": 3, "right": 3}
    multilinear: ClassVar = True

    @property
    def shape(self):
        self.leaves()
        blocks, order = self.diagonal.shape[-2:]
        want = (blocks, order, self.left.shape[-1])
        for name in ("left", "right"):
            got = getattr(self, name).shape
            if got[-3:] != want:
                raise ValueError(
                    f"{name}: got shape {tuple(got)}; a diagonal of shape "
                    f"{tuple(self.diagonal.shape)} wants it to end in {want}"
                )
        return (blocks * order,) * 2

    def matvec(self, v):
        self.check_vector(v)
        dtype = jnp.result_type(self.dtype, v)
        groups = jnp.reshape(v, (*v.shape[:-1], *self.diagonal.shape[-2:]))
        inner = multiply_sum(self.right, groups[..., None], axis=-2)
        out = self.diagonal * groups + multiply_sum(self.left, inner[..., None, :], axis=-1)
        return out.reshape(*out.shape[:-2], v.shape[-1]).astype(dtype)

    def transpose(self):
        return LowRankUpdate(self.diagonal, self.right, self.left)

    def as_dense(self):
        blocks, order = self.diagonal.shape[-2:]
        update = multiply_sum(self.left[..., :, None, :], self.right[..., None, :, :], axis=-1)
        within = jnp.where(jnp.eye(order, dtype=bool), self.diagonal[..., None], 0) + update
        # (..., k, n, 1, n) on the unit matrix over the two block axes.
        dense = jnp.where(jnp.eye(blocks, dtype=bool)[:, None, :, None], within[..., None, :], 0)
        size = blocks * order
        return dense.reshape(*dense.shape[:-4], size, size).astype(self.dtype)

    def cost(self) -> Cost:
        size, rank = self.shape[0], self.left.shape[-1]
        return self.cost_of(size * (4 * rank + 1))
