"""One source for every output: the transposed Jacobian of max-pooling."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import ClassVar, final

import jax
import jax.numpy as jnp

from parscan_bp.operators.base import Cost, Operator
from parscan_bp.operators.channel_dense import ChannelDense
from parscan_bp.operators.sparse import Sparse, from_numbers
from parscan_bp.sparsity import Pattern
from parscan_bp.sparsity.plan import pick
from parscan_bp.types import Array


@final
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Selection(Operator):
    """(A v)_(s, c) = sum of weight_oc v_(o, c) over the outputs o with source_oc = s.

    Features are positions times channels, channels last. The pattern holds every position that an
    output may ever select (its window) and is known before anything runs; which one it is, is
    data. The matrix has one entry per output where the pattern has one per window position.

    Args:
      source: int (..., outputs, channels), the input position that each output selects; one of
        the pattern's entries in its column, or -1 where it selects none: then nothing comes of
        its weight or of a vector's entry there, were they infinite.
      weight: (..., outputs, channels), its factor: 1 for plain max-pooling.
      pattern: (inputs, outputs), the positions that may be selected; static.
      transposed: whether the operator is the transpose of the above, a gather; static.

    Raises:
      ValueError: if an array has another size than the pattern says, when the `shape` is first
        needed.

    Source: BPPSA section 3.3, Algorithms 8 to 10 (max-pooling), with one entry per output instead
    of one per window position.

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.operators import Selection
      >>> from parscan_bp.sparsity import Pattern
      >>> windows = Pattern.from_coordinates([0, 1, 2, 3], [0, 0, 1, 1], (4, 2))
      >>> op = Selection(jnp.array([[1], [2]]), jnp.ones((2, 1)), windows)
      >>> op.matvec(jnp.array([5.0, 6.0])).tolist()
      [0.0, 5.0, 6.0, 0.0]
    """

    source: Array
    weight: Array
    pattern: Pattern = dataclasses.field(metadata={"static": True})
    transposed: bool = dataclasses.field(default=False, metadata={"static": True})

    core_ndims: ClassVar = {"source": 2, "weight": 2}
    patterned: ClassVar = True
    multilinear: ClassVar = True
    held_by: ClassVar = {ChannelDense: lambda op: op.blocks(), Sparse: lambda op: op.entries()}

    @property
    def shape(self):
        self.leaves()
        inputs, outputs = self.pattern.shape
        for name in ("source", "weight"):
            got = getattr(self, name).shape
            if got[-2] != outputs or got[-1] != self.channels:
                raise ValueError(
                    f"{name}: got shape {tuple(got)}; the pattern has {outputs} outputs and source "
                    f"{self.channels} channels: (..., {outputs}, {self.channels}) is wanted"
                )
        sizes = (inputs * self.channels, outputs * self.channels)
        return sizes[::-1] if self.transposed else sizes

    @property
    def channels(self) -> int:
        """Features per position."""
        return self.source.shape[-1]

    @property
    def dtype(self):
        return jnp.result_type(self.weight)

    def matvec(self, v):
        self.check_vector(v)
        positions = jnp.reshape(v, (*v.shape[:-1], v.shape[-1] // self.channels, self.channels))
        apply = _gather if self.transposed else _scatter(self.pattern.shape[0])
        out = apply(self.source, self.weight, positions)
        return out.reshape(*out.shape[:-2], self.shape[0])

    def transpose(self):
        return dataclasses.replace(self, transposed=not self.transposed)

    def as_dense(self):
        inputs, outputs = self.pattern.shape
        chosen = jnp.arange(inputs)[:, None, None] == self.source[..., None, :, :]
        own = jnp.eye(self.channels, dtype=bool)[:, None, :]
        # (..., inputs, channel, outputs, channel); a selection, as inf * 0 would be NaN.
        dense = jnp.where(
            chosen[..., :, None, :, :] & own, self.weight[..., None, None, :, :], 0
        ).astype(self.dtype)
        dense = dense.reshape(*dense.shape[:-4], inputs * self.channels, outputs * self.channels)
        dense = jnp.broadcast_to(dense, (*self.stack_shape, *dense.shape[-2:]))
        return jnp.swapaxes(dense, -1, -2) if self.transposed else dense

    def channel_diagonal(self) -> tuple[Pattern, Array]:
        """The pattern between positions, and (..., nnz, channels), what stands there."""
        rows, cols = self.pattern.coordinates
        chosen = jnp.take(self.source, cols, axis=-2) == rows[:, None]
        entries = jnp.where(chosen, jnp.take(self.weight, cols, axis=-2), 0)
        if not self.transposed:
            return self.pattern, entries
        pattern, order = self.pattern.transposed
        return pattern, pick(entries, order, axis=-2)

    def blocks(self) -> ChannelDense:
        """A diagonal block for each position of the pattern."""
        pattern, entries = self.channel_diagonal()
        eye = jnp.eye(self.channels, dtype=bool)
        return ChannelDense(jnp.where(eye, entries[..., None], 0), pattern)

    def entries(self) -> Sparse:
        """Number by number."""
        positions, entries = self.channel_diagonal()
        pattern, order = positions.expand(self.channels, self.channels, diagonal=True)
        return from_numbers(entries, 2, pattern, order)

    def cost(self) -> Cost:
        return self.cost_of(2 * math.prod(self.source.shape[-2:]))

    def rate(self, vectors):
        return "entries"


def _scatter(inputs: int) -> Callable[..., Array]:
    @functools.partial(jnp.vectorize, signature="(o,c),(o,c),(o,c)->(i,c)")
    def scatter(source, weight, v):
        terms = jnp.where(source >= 0, weight * v, 0)
        total = jnp.zeros((inputs, terms.shape[1]), terms.dtype)
        return total.at[jnp.maximum(source, 0), jnp.arange(terms.shape[1])].add(terms)

    return scatter


@functools.partial(jnp.vectorize, signature="(o,c),(o,c),(i,c)->(o,c)")
def _gather(source, weight, v):
    taken = weight * jnp.take_along_axis(v, jnp.maximum(source, 0), axis=0)
    return jnp.where(source >= 0, taken, 0)
