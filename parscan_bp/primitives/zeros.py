"""Zeros of tangents: such as are known, and such as a linear system can be transposed by."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero, zero_from_primal
from jax.sharding import NamedSharding, PartitionSpec

from parscan_bp.jaxprs.read import is_differentiable
from parscan_bp.trees import is_sharded
from parscan_bp.types import Array, PyTree


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Zero:
    """An array known to be zero. Where nothing reads it, none is made.

    Attributes:
      value: the array.
    """

    value: Array


def is_zero(value: Any) -> bool:
    """Whether it is a `Zero`."""
    return isinstance(value, Zero)


def instantiated(tree: PyTree) -> PyTree:
    """The tree with arrays for every `Zero`."""
    return jax.tree.map(lambda v: v.value if is_zero(v) else v, tree, is_leaf=is_zero)


def empty_of(values: Sequence[Any]) -> Array:
    """An array without entries that depends linearly on every float of ``values``."""
    parts = [
        jnp.sum(jnp.atleast_1d(v)[:0], axis=tuple(range(1, jnp.ndim(v))))
        for v in jax.tree.leaves(values)
        if is_differentiable(v)
    ]
    return functools.reduce(jnp.add, [jnp.real(p).astype(jnp.float32) for p in parts])


def tied_zeros(empty: Array, like: Array, *, entry: bool = False) -> Array:
    """Zeros of ``like``'s type, or of one entry's of its leading axis, tied to ``empty``.

    A linear solve can be transposed only if every leaf of its right-hand side is
    linear in the tangents. The sum of no entries is linear, and its transpose costs nothing.
    """
    # Inside shard_map the result varies over the mesh axes of ``like``, too.
    zero = jnp.sum(empty.astype(like.dtype) + jnp.zeros_like(like, shape=(0,)))
    first, aval = int(entry), jax.typeof(like)
    zeros = jnp.broadcast_to(zero, aval.shape[first:])
    if not is_sharded(aval):
        return zeros
    spec = PartitionSpec(*aval.sharding.spec[first:])
    return jax.reshard(zeros, NamedSharding(aval.sharding.mesh, spec))


def nonzero(tangents: Sequence[Any]) -> tuple[int, ...]:
    """Positions of the tangents that are not known to be zero."""
    return tuple(k for k, t in enumerate(tangents) if not isinstance(t, SymbolicZero))


def zeros_of(values: Sequence[Any]) -> list[Any]:
    """Tangents that are known to be zero."""
    return [zero_from_primal(v, symbolic_zeros=True) for v in values]


def filled(values: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
    """The tangents, known to be zero where a value has none."""
    pairs = zip(zeros_of(values), tangents, strict=True)
    return [zero if t is None else t for zero, t in pairs]
