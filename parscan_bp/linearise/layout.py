"""The join of a carry's leaves into one vector."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import lax

from parscan_bp.trees import at_least_single
from parscan_bp.types import Array


@dataclasses.dataclass(frozen=True)
class CarryLayout:
    """How the differentiable leaves of a carry become one vector per batch entry.

    Leaf ``k`` of shape ``s`` has the batch axes ``batch_axes[k]`` (in an order that
    agrees between leaves); its other axes are ravelled into features and the features
    of all leaves are concatenated. Batch axes are kept as they are, in front: a
    sharded batch needs no communication. A complex leaf enters as real and imaginary
    part; for cotangents the imaginary part changes sign, which makes the pairing of
    JAX (``ct * t``, without conjugation) the dot product of the joined vectors.

    Attributes:
      shapes: shape of each leaf.
      dtypes: dtype of each leaf.
      batch_axes: batch axes of each leaf, the same number for all.
      keep_complex: the leaves are complex and the step is holomorphic in them, so that
        the joined vector is complex and A_t the plain transpose.
    """

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[np.dtype, ...]
    batch_axes: tuple[tuple[int, ...], ...]
    keep_complex: bool = False

    def restricted(self, leaves: Sequence[int]) -> CarryLayout:
        """The layout of these leaves alone."""
        return CarryLayout(
            tuple(self.shapes[k] for k in leaves),
            tuple(self.dtypes[k] for k in leaves),
            tuple(self.batch_axes[k] for k in leaves),
            self.keep_complex,
        )

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return tuple(self.shapes[0][a] for a in self.batch_axes[0]) if self.shapes else ()

    @property
    def features(self) -> tuple[int, ...]:
        """Features of each leaf, counting a complex one twice."""
        leaves = zip(self.shapes, self.batch_axes, self.dtypes, strict=True)
        return tuple(
            math.prod(n for k, n in enumerate(shape) if k not in axes)
            * (2 if self._in_two_parts(dtype) else 1)
            for shape, axes, dtype in leaves
        )

    def _in_two_parts(self, dtype) -> bool:
        return jnp.issubdtype(dtype, jnp.complexfloating) and not self.keep_complex

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the joined vector: at least float32, real unless `keep_complex`."""
        parts = self.dtypes if self.keep_complex else [jnp.finfo(d).dtype for d in self.dtypes]
        return at_least_single(*parts)

    def join(self, leaves: Sequence[Array], *, cotangent: bool) -> Array:
        """Leaves of shape ``(*lead, *shape)`` as one array ``(*lead, *batch, features)``."""
        parts: list[Array] = []
        for leaf, shape, axes in zip(leaves, self.shapes, self.batch_axes, strict=True):
            lead = leaf.ndim - len(shape)
            source = tuple(lead + a for a in axes)
            front = jnp.moveaxis(leaf, source, tuple(range(lead, lead + len(axes))))
            kept = front.shape[: lead + len(axes)]
            flat = front.reshape(*kept, math.prod(front.shape[lead + len(axes) :]))
            if self._in_two_parts(flat.dtype):
                imag = -flat.imag if cotangent else flat.imag
                parts += [flat.real, imag]
            else:
                parts.append(flat)
        return jnp.concatenate([p.astype(self.dtype) for p in parts], axis=-1)

    def split(self, vector: Array, *, cotangent: bool) -> list[Array]:
        """The leaves of a joined vector, each in its own shape and dtype."""
        lead_shape = vector.shape[: vector.ndim - 1 - len(self.batch_shape)]
        lead, leaves, start = len(lead_shape), [], 0
        for shape, dtype, axes, n in zip(
            self.shapes, self.dtypes, self.batch_axes, self.features, strict=True
        ):
            flat = lax.slice_in_dim(vector, start, start + n, axis=-1)
            start += n
            if self._in_two_parts(dtype):
                real, imag = jnp.split(flat, 2, axis=-1)
                flat = lax.complex(real, -imag if cotangent else imag)
            rest = tuple(s for a, s in enumerate(shape) if a not in axes)
            front = flat.reshape(lead_shape + self.batch_shape + rest)
            target = tuple(lead + a for a in axes)
            leaf = jnp.moveaxis(front, tuple(range(lead, lead + len(axes))), target)
            leaves.append(leaf.astype(dtype))
        return leaves
