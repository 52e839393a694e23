"""Stretches of time-stacked arrays, and the join of a carry's leaves into one vector.

A *stretch* is ``size`` consecutive entries of the leading axis, beginning at
``start``; ``start`` may be traced, ``size`` is a Python int.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from parscan_bp.types import Array, PyTree


def stretch(tree: PyTree, start: int | Array, size: int) -> PyTree:
    """The entries ``start .. start + size`` of every leaf's leading axis."""
    cut = functools.partial(lax.dynamic_slice_in_dim, allow_negative_indices=False)
    return jax.tree.map(lambda a: cut(a, start, size, axis=0), tree)


def write_stretch(buffers: PyTree, values: PyTree, start: int | Array) -> PyTree:
    """``buffers`` with ``values`` written at ``start`` of the leading axis."""
    write = functools.partial(lax.dynamic_update_slice_in_dim, allow_negative_indices=False)
    return jax.tree.map(lambda b, v: write(b, v, start, axis=0), buffers, values)


def map_chunks(f: Callable[[PyTree], PyTree], tree: PyTree, n: int, size: int) -> PyTree:
    """``f(tree)`` for an ``f`` that acts on every entry of the leading axis by itself.

    It is given ``size`` of the n entries at a time, and at last those that remain.
    """
    if size >= n:
        return f(tree)
    whole, rest = divmod(n, size)

    def chunked(a):
        return a[: whole * size].reshape(whole, size, *a.shape[1:])

    out = lax.map(f, jax.tree.map(chunked, tree))
    out = jax.tree.map(lambda a: a.reshape(whole * size, *a.shape[2:]), out)
    if not rest:
        return out
    last = f(jax.tree.map(lambda a: a[whole * size :], tree))
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b]), out, last)


def add(a: PyTree, b: PyTree) -> PyTree:
    """Leafwise sum; ``None`` stands for zero on either side."""
    if a is None:
        return b
    return a if b is None else jax.tree.map(jnp.add, a, b)


def struct_like(array: Array, shape: Sequence[int], dtype: Any) -> jax.ShapeDtypeStruct:
    """The type of such an array; inside `jax.shard_map` it varies over the mesh axes of ``array``.

    A transposition by a type that varies less would sum over the devices.
    """
    zeros = functools.partial(jnp.zeros_like, shape=tuple(shape), dtype=dtype)
    return jax.eval_shape(zeros, array)


def at_least_single(*dtypes: Any) -> np.dtype:
    """The type that holds numbers of these, and those of float32, whatever JAX's settings are."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.result_type(jnp.float32, *dtypes)


def is_sharded(aval: Any) -> bool:
    """Whether a type says that an axis is divided among devices: explicit sharding.

    So it does for arrays on a mesh of `jax.make_mesh`, unless its axes were asked to be automatic.
    """
    sharding = getattr(aval, "sharding", None)  # tokens have none
    return sharding is not None and any(part is not None for part in sharding.spec)


def nbytes(tree: PyTree) -> int:
    """Bytes of all leaves, which may be arrays or their shapes and dtypes."""
    return sum(math.prod(a.shape) * a.dtype.itemsize for a in jax.tree.leaves(tree))


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
        batch = math.prod(self.batch_shape)
        sizes = (math.prod(s) // batch if batch else 0 for s in self.shapes)
        return tuple(
            n * (2 if self._in_two_parts(d) else 1) for n, d in zip(sizes, self.dtypes, strict=True)
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
