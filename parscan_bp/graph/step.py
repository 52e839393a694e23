"""A node as a layer: from the values that are live before it to those that are live after it."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, final

import jax.numpy as jnp
import numpy as np

from parscan_bp.layers import Joint, Layer
from parscan_bp.layers.base import flat
from parscan_bp.layers.stated import checked_operator
from parscan_bp.operators import BlockSparse, Identity
from parscan_bp.types import Array


class LiveType(NamedTuple):
    """The type of one live value, without the batch."""

    features: tuple[int, ...]
    dtype: np.dtype

    @property
    def size(self) -> int:
        return math.prod(self.features)


@final
@dataclasses.dataclass(frozen=True, repr=False)
class StateStep(Layer):
    """s_k = (what is kept of s_{k-1}, y), y = joint(what it reads of s_{k-1}; theta).

    A state s_k holds the live values side by side, flat, (batch, total), in the common dtype of all
    of them, in which each is exact. With A_i the transposed Jacobian of y by the
    i-th value that is read, the transposed Jacobian of the step is a `BlockSparse`,

        (d s_k / d s_{k-1})^T:    I from each value to itself if it is kept, A_i from it to y,

    and A_1 itself where one value is live before and after.

    Attributes:
      name: of the node.
      joint: what makes its value; without any inputs its value is the same for all the batch.
      reads: where in the state before it the values stand that it reads.
      keeps: where in it those stand that are read later; they lead the state after it.
      entering: the types of the values in the state before it.
      made: the type of y, the last value in the state after it.

    Source: M. Naumov, "Parallel complexity of forward and backward propagation", 2017, section 5.
    """

    name: str
    joint: Joint
    reads: tuple[int, ...]
    keeps: tuple[int, ...]
    entering: tuple[LiveType, ...]
    made: LiveType

    def __repr__(self):
        return f"node {self.name!r}, {self.joint}"

    @property
    def label(self):
        return self.name

    @property
    def leaving(self) -> tuple[LiveType, ...]:
        """The types of the values in the state after it."""
        return (*(self.entering[k] for k in self.keeps), self.made)

    def apply(self, params, x):
        pieces = pieces_of(x, self.entering)
        y = self.joint.apply(params, *self._read(x))
        if not self.reads:
            y = jnp.broadcast_to(y, (x.shape[0], *y.shape))
        return joined_state([*(pieces[k] for k in self.keeps), flat(y)], self.leaving)

    def adjoint_operator(self, params, x, y):
        xs, made = self._read(x), live_values(y, self.leaving)[-1]
        found = self.joint.adjoint_operators(params, xs, made)
        if len(found) != len(xs):
            raise ValueError(
                f"{self}: adjoint_operators returned {len(found)} operators; one for each of "
                f"{len(xs)} inputs is wanted"
            )
        adjoints = [
            checked_operator(f"input {k} of {self}", a, own, made)
            for k, (a, own) in enumerate(zip(found, xs, strict=True))
        ]
        kept = [
            (k, col, Identity(self.entering[k].size, y.dtype)) for col, k in enumerate(self.keeps)
        ]
        last = len(self.keeps)
        terms = [*kept, *((k, last, a) for k, a in zip(self.reads, adjoints, strict=True))]
        rows, cols = (tuple(part.size for part in own) for own in (self.entering, self.leaving))
        whole = BlockSparse.of(terms, rows, cols)
        return whole.blocks[0] if len(rows) == len(cols) == 1 else whole

    def pullback(self, params, x, y, ct):
        made, own = (live_values(v, self.leaving)[-1] for v in (y, ct))
        return self.joint.pullback(params, self._read(x), made, own)

    def _read(self, x: Array) -> list[Array]:
        values = live_values(x, self.entering)
        return [values[k] for k in self.reads]


def joined_state(values: Sequence[Array], parts: Sequence[LiveType]) -> Array:
    """Values of these types as a state (batch, total)."""
    dtype = jnp.result_type(*(part.dtype for part in parts))
    return jnp.concatenate([flat(value).astype(dtype) for value in values], axis=1)


def pieces_of(state: Array, parts: Sequence[LiveType]) -> list[Array]:
    """The values in a state, flat and in its dtype."""
    edges = list(itertools.accumulate(part.size for part in parts))
    return jnp.split(state, edges[:-1], axis=1)


def live_values(state: Any, parts: Sequence[LiveType]) -> list[Array]:
    """The values in a state, each of its own type."""
    pieces = zip(pieces_of(state, parts), parts, strict=True)
    return [v.reshape(v.shape[0], *part.features).astype(part.dtype) for v, part in pieces]
