"""Some neighbouring channels of all: the transposed Jacobian of a concatenation."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp
import numpy as np

from parscan_bp.operators.base import Cost, Operator
from parscan_bp.operators.channel_dense import ChannelDense
from parscan_bp.operators.sparse import Sparse
from parscan_bp.sparsity import Pattern
from parscan_bp.types import Array

_STATIC = {"static": True}


@final
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ChannelSlice(Operator):
    """(A v)_(p, c) = v_(p, start + c) for ``count`` of the ``channels`` of each position p.

    Features are positions times channels, channels last. Like `Identity` it has no arrays, is
    shared by every map of a stack of any length, and costs no arithmetic. The transpose puts
    channels where they came from, between zeros.

    Args:
      positions: number of positions.
      channels: channels of the vector.
      start: the first channel that is taken.
      count: how many are taken.
      dtype: of `as_dense`; it promotes nothing.
      transposed: whether the operator is the transpose of the above.

    Raises:
      ValueError: if the channels that are taken are not among all.

    Source: the block of one operand in the transposed Jacobian of a concatenation, as of a DenseNet
    (Huang et al., 2017, eq. 2).

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.operators import ChannelSlice
      >>> op = ChannelSlice(positions=2, channels=3, start=1, count=2)
      >>> op.matvec(jnp.arange(6.0)).tolist()
      [1.0, 2.0, 4.0, 5.0]
      >>> op.transpose().matvec(jnp.ones(4)).tolist()
      [0.0, 1.0, 1.0, 0.0, 1.0, 1.0]
    """

    positions: int = dataclasses.field(metadata=_STATIC)
    channels: int = dataclasses.field(metadata=_STATIC)
    start: int = dataclasses.field(metadata=_STATIC)
    count: int = dataclasses.field(metadata=_STATIC)
    dtype: Any = dataclasses.field(default=np.dtype("float32"), metadata=_STATIC)
    transposed: bool = dataclasses.field(default=False, metadata=_STATIC)

    multilinear: ClassVar = True
    held_by: ClassVar = {
        ChannelDense: lambda op: op.blocks(),
        Sparse: lambda op: op.blocks().entries(),
    }

    def __post_init__(self):
        if not 0 <= self.start <= self.start + self.count <= self.channels:
            raise ValueError(
                f"start: got {self.start} for {self.count} of {self.channels} channels; "
                f"0 to {self.channels - self.count} is wanted"
            )
        object.__setattr__(self, "dtype", np.dtype(self.dtype))

    @property
    def shape(self):
        sizes = (self.positions * self.count, self.positions * self.channels)
        return sizes[::-1] if self.transposed else sizes

    @property
    def nnz(self):
        return self.positions * self.count

    def matvec(self, v):
        self.check_vector(v)
        if not self.transposed:
            taken = self._by_channels(v, self.channels)[..., self.start : self.start + self.count]
        else:
            after = self.channels - self.start - self.count
            pads = [(0, 0)] * jnp.ndim(v) + [(self.start, after)]
            taken = jnp.pad(self._by_channels(v, self.count), pads)
        return taken.reshape(*taken.shape[:-2], self.shape[0])

    def _by_channels(self, v: Array, channels: int) -> Array:
        return jnp.reshape(v, (*jnp.shape(v)[:-1], self.positions, channels))

    def transpose(self):
        return dataclasses.replace(self, transposed=not self.transposed)

    def as_dense(self):
        return self.transpose().matvec(jnp.eye(self.shape[0], dtype=self.dtype))

    def blocks(self) -> ChannelDense:
        """A unit matrix, between zeros, for each position."""
        own = jnp.eye(self.count, self.channels, self.start, dtype=self.dtype)
        own = own.T if self.transposed else own
        blocks = jnp.broadcast_to(own, (self.positions, *own.shape))
        return ChannelDense(blocks, Pattern.diagonal(self.positions))

    def unpacked(self):
        return self.blocks()

    def cost(self) -> Cost:
        return Cost(0, 0)
