"""Exactly one source for each output: max-pooling, cropping, permutations."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp
import numpy as np

from parscan_bp.operators.base import Cost, Operator
from parscan_bp.types import Array


@final
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Selection(Operator):
    """(A v)_i = v[source_i], or the transpose (A v)_j = sum of v_i over all i with source_i = j.

    The number of entries is known ahead of time, their places are data: a max-pool has one
    source per output whatever its input. Its transposed Jacobian is the transpose.

    Args:
      source: integers (..., outputs): for each output the flat index of its input. ``inputs``
        itself means that there is none, and the output is 0.
      inputs: number of entries to select from.
      dtype: of `as_dense`. It promotes nothing: `matvec` returns the dtype of the vector.
      transposed: whether the operator is the transpose.

    Raises:
      ValueError: if ``source`` has no axes, when the `shape` is first needed.

    Source: BPPSA appendix D.3 (``pool_indices``).

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.operators import Selection
      >>> op = Selection(jnp.array([2, 0, 2]), inputs=4)
      >>> op.matvec(jnp.array([1.0, 2.0, 3.0, 4.0])).tolist()
      [3.0, 1.0, 3.0]
      >>> op.transpose().matvec(jnp.array([1.0, 10.0, 100.0])).tolist()
      [10.0, 0.0, 101.0, 0.0]
    """

    source: Array
    inputs: int = dataclasses.field(metadata={"static": True})
    dtype: Any = dataclasses.field(default=np.dtype("float32"), metadata={"static": True})
    transposed: bool = dataclasses.field(default=False, metadata={"static": True})

    core_ndims: ClassVar = {"source": 1}

    def __post_init__(self):
        object.__setattr__(self, "dtype", np.dtype(self.dtype))
        super().__post_init__()

    @property
    def shape(self):
        self.leaves()
        sizes = (self.source.shape[-1], self.inputs)
        return sizes[::-1] if self.transposed else sizes

    def matvec(self, v):
        self._check_vector(v)
        lead = np.broadcast_shapes(v.shape[:-1], self.stack_shape)
        many = math.prod(lead)
        source = jnp.broadcast_to(self.source, (*lead, self.source.shape[-1])).reshape(many, -1)
        v = jnp.broadcast_to(v, (*lead, v.shape[-1])).reshape(many, v.shape[-1])
        out = jax.vmap(self._scatter if self.transposed else self._gather)(source, v)
        return out.reshape(*lead, out.shape[-1])

    def _gather(self, source, v):
        return v.at[source].get(mode="fill", fill_value=0)

    def _scatter(self, source, v):
        return jnp.zeros(self.inputs, v.dtype).at[source].add(v, mode="drop")

    def transpose(self):
        return dataclasses.replace(self, transposed=not self.transposed)

    def as_dense(self):
        dense = jax.nn.one_hot(self.source, self.inputs, dtype=self.dtype)
        return jnp.swapaxes(dense, -1, -2) if self.transposed else dense

    def cost(self) -> Cost:
        """A gather takes no operations, a scatter one addition per source."""
        return self._cost(self.source.shape[-1] if self.transposed else 0)
