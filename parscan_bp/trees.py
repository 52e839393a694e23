"""Trees of arrays: stretches of what is stacked along time, sums, types and bytes.

A *stretch* is ``size`` consecutive entries of the leading axis, beginning at
``start``; ``start`` may be traced, ``size`` is a Python int.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from parscan_bp.types import Array, PyTree


def row(tree: PyTree, at: int | Array) -> PyTree:
    """One entry of the leading axis."""
    return jax.tree.map(lambda a: a[at], tree)


def stretch(tree: PyTree, start: int | Array, size: int, axis: int = 0) -> PyTree:
    """The entries ``start .. start + size`` of an axis of every leaf, the leading one."""
    cut = functools.partial(lax.dynamic_slice_in_dim, allow_negative_indices=False)
    return jax.tree.map(lambda a: cut(a, start, size, axis=axis), tree)


def write_stretch(buffers: PyTree, values: PyTree, start: int | Array, axis: int = 0) -> PyTree:
    """``buffers`` with ``values`` written at ``start`` of an axis, the leading one."""
    write = functools.partial(lax.dynamic_update_slice_in_dim, allow_negative_indices=False)
    return jax.tree.map(lambda b, v: write(b, v, start, axis=axis), buffers, values)


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


def largest(tree: PyTree) -> Array:
    """The largest of all numbers, at least 0; NaN if any is.

    On a CPU, XLA's maximum of many numbers (4,000, jax 0.10) passes over NaNs.

    Example:
      >>> import jax.numpy as jnp
      >>> [float(largest(jnp.ones(5000).at[-1].set(v))) for v in (jnp.nan, jnp.inf)]
      [nan, inf]
    """
    # Leaf by leaf: arrays that are spread over a mesh have no common flat form.
    leaves = [jnp.asarray(v) for v in jax.tree.leaves(tree)]
    most = functools.reduce(jnp.maximum, [jnp.max(v, initial=0) for v in leaves])
    if not jnp.issubdtype(most.dtype, jnp.floating):
        return most
    missing = [jnp.any(jnp.isnan(v)) for v in leaves]
    return jnp.where(functools.reduce(jnp.logical_or, missing), jnp.nan, most)


def add(a: PyTree, b: PyTree) -> PyTree:
    """Leafwise sum; ``None`` stands for zero on either side."""
    if a is None:
        return b
    return a if b is None else jax.tree.map(jnp.add, a, b)


def eval_shape(f: Callable, *args: PyTree) -> PyTree:
    """`jax.eval_shape`, whose result may stand for values wherever the program runs.

    Where it runs on each device of some axes of a mesh, and on all of the others at once, JAX (0.10
    to 0.12) leaves out the mesh, and makes no type of what varies without one.
    """

    def with_mesh(struct):
        varying = getattr(struct.manual_axis_type, "varying", None)
        if not varying or struct.sharding is not None:
            return struct
        sharding = NamedSharding(jax.sharding.get_abstract_mesh(), PartitionSpec())
        how = {"manual_axis_type": struct.manual_axis_type, "weak_type": struct.weak_type}
        return jax.ShapeDtypeStruct(struct.shape, struct.dtype, sharding=sharding, **how)

    return jax.tree.map(with_mesh, jax.eval_shape(f, *args))


def first_of(stacked: PyTree) -> PyTree:
    """The types of one entry of the leading axis of every leaf."""
    first = functools.partial(lax.index_in_dim, index=0, keepdims=False)
    return eval_shape(lambda: jax.tree.map(first, stacked))


def struct_like(array: Array, shape: Sequence[int], dtype: Any) -> jax.ShapeDtypeStruct:
    """The type of such an array; inside `jax.shard_map` it varies over the mesh axes of ``array``.

    A transposition by a type that varies less would sum over the devices.
    """
    zeros = functools.partial(jnp.zeros_like, shape=tuple(shape), dtype=dtype)
    return eval_shape(zeros, array)


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


def same_structure(a: Any, b: Any) -> bool:
    """Whether two structures of pytrees are one.

    JAX takes those of dataclasses of different classes for equal (0.10 to 0.12); their hashes tell
    them apart.
    """
    return hash(a) == hash(b) and a == b


def replace_at(values: Sequence[Any], index: Sequence[int], new: Sequence[Any]) -> list[Any]:
    """``values`` with the entries at ``index`` replaced."""
    out = list(values)
    for k, v in zip(index, new, strict=True):
        out[k] = v
    return out
