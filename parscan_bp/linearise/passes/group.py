"""Small leaves of the vector as one array: what XLA on CPU wants of a loop's carry."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from parscan_bp.jaxprs.replay import evaluate
from parscan_bp.linearise.linear_step import LinearStep
from parscan_bp.trees import eval_shape
from parscan_bp.types import Array

JOINED = 8
"""Most leaves of one array of `Grouped`."""


@dataclasses.dataclass(frozen=True)
class Grouped:
    """Small leaves of one shape and dtype as one array, for a loop that carries them.

    Up to jax 0.11, XLA on CPU runs the operations of a loop's body one after the other where they
    are eight or fewer, and hands more to threads, which takes longer than the small ones do
    themselves. An array that is carried and stacked is two of them, whatever its size; so an
    LSTM's sweep at batch 1 takes 0.2 us a step with one array and 0.6 us with two. Large leaves
    stay apart: there the copy costs more. So do many: XLA takes long to compile their join (most of
    a minute for 300), and what it makes of it is slow.

    Attributes:
      shapes: shape of each leaf.
      dtypes: dtype of each leaf.
      most: bytes of the largest leaf that is small.
    """

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[np.dtype, ...]
    most: int

    @functools.cached_property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Positions of the leaves of each array."""
        kinds: dict[Any, list[int]] = {}
        for k, (shape, dtype) in enumerate(zip(self.shapes, self.dtypes, strict=True)):
            small = math.prod(shape) * dtype.itemsize <= self.most
            kinds.setdefault((shape, dtype) if small else k, []).append(k)
        parts: list[tuple[int, ...]] = []
        for group in kinds.values():
            parts += [tuple(group)] if len(group) <= JOINED else [(k,) for k in group]
        return tuple(parts)

    def join(self, leaves: Sequence[Array]) -> list[Array]:
        """Leaves of shape ``(*lead, *shape)`` as arrays ``(*lead, group, *shape)``."""
        return [
            leaves[group[0]]
            if len(group) == 1
            else jnp.stack([leaves[k] for k in group], -1 - len(self.shapes[group[0]]))
            for group in self.groups
        ]

    def split(self, arrays: Sequence[Array]) -> list[Array]:
        """The inverse of `join`."""
        leaves: dict[int, Array] = {}
        for group, array in zip(self.groups, arrays, strict=True):
            if len(group) == 1:
                leaves[group[0]] = array
                continue
            axis = array.ndim - 1 - len(self.shapes[group[0]])
            parts = (lax.index_in_dim(array, i, axis, keepdims=False) for i in range(len(group)))
            leaves.update(zip(group, parts, strict=True))
        return [leaves[k] for k in range(len(self.shapes))]


def group(grouped: Grouped, step: LinearStep) -> LinearStep:
    """The same map of a vector that is grouped so."""
    if all(len(group) == 1 for group in grouped.groups):
        return step

    def run(k, v):
        out = evaluate(step.apply, [*k, *grouped.split(v)])
        return [*grouped.join(out[: step.width]), *out[step.width :]]

    return step.rewritten(run, vector=eval_shape(grouped.join, list(step.vector)))
