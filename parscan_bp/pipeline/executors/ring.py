"""Buffers of several values of one kind, on the device that they are for."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from parscan_bp.types import Array, PyTree


def empty(slots: int, entry: PyTree) -> PyTree:
    """Room for so many entries."""
    return jax.tree.map(lambda a: _zeros((slots, *a.shape), a.dtype), entry)


def put(ring: PyTree, slot: Array | int, entry: PyTree) -> PyTree:
    """Writes an entry over what is in a slot."""
    write = lambda r, a: lax.dynamic_update_index_in_dim(r, a, slot, 0)  # noqa: E731
    return jax.tree.map(write, ring, entry)


def get(ring: PyTree, slot: Array) -> PyTree:
    """The entry of a slot."""
    return jax.tree.map(lambda r: lax.dynamic_index_in_dim(r, slot, 0, keepdims=False), ring)


def zeros_like(entry: PyTree) -> PyTree:
    """An entry of zeros; of arrays, or of shapes and dtypes."""
    return jax.tree.map(lambda a: _zeros(a.shape, a.dtype), entry)


def _zeros(shape: tuple[int, ...], dtype: Any) -> Array:
    if not jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        return jnp.zeros(shape, dtype)
    one = jax.random.key_data(jax.random.key(0, impl=dtype))
    return jax.random.wrap_key_data(jnp.zeros((*shape, *one.shape), one.dtype), impl=dtype)
