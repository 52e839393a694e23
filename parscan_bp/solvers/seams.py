"""When a correction that a seam hands on still counts, for each entry of a mapped axis apart."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from parscan_bp.primitives.mapping import largest_of_mapped
from parscan_bp.report import error_bound
from parscan_bp.types import Array, PyTree


def matters(correction: PyTree, stored: PyTree, lead: int) -> Array:
    """Whether adding it changes a number, for each entry of the leading axes.

    Half an ulp of v is at least eps / 4 |v|. A correction that is NaN matters.
    """

    def leaf(c, v):
        eps = jnp.finfo(v.dtype).eps if jnp.issubdtype(v.dtype, jnp.inexact) else 0
        kept = (jnp.abs(c) <= eps / 4 * jnp.abs(v)) | (c == 0)
        return ~jnp.all(kept, axis=tuple(range(lead, c.ndim)))

    return functools.reduce(jnp.logical_or, jax.tree.leaves(jax.tree.map(leaf, correction, stored)))


def are_finite(values: PyTree, lead: int) -> Array:
    """Whether all numbers are, for each entry of the leading axes."""
    flags = [
        jnp.all(jnp.isfinite(a), axis=tuple(range(lead, a.ndim))) for a in jax.tree.leaves(values)
    ]
    return functools.reduce(jnp.logical_and, flags)


def select(flags: Array, yes: PyTree, no: PyTree) -> PyTree:
    """``yes`` where the flags of the leading axes are set, else ``no``, bit for bit."""

    def leaf(a, b):
        return jnp.where(flags.reshape(flags.shape + (1,) * (a.ndim - flags.ndim)), a, b)

    return jax.tree.map(leaf, yes, no)


def anywhere(flag: Array) -> Array:
    """Whether it is set for any entry of a mapped axis."""
    return largest_of_mapped(flag.astype(jnp.int32)) > 0


def cancels(old: PyTree, new: PyTree, lead: int) -> Array:
    """Whether adding a correction lost more digits than a report calls accurate, by leading axes.

    The largest number of a stretch, along the axis after the leading ones, and of the last axis
    counts: one that is small by chance has lost nothing that matters beside it.
    """

    def leaf(a, b):
        if not jnp.issubdtype(a.dtype, jnp.inexact):
            return jnp.zeros(a.shape[:lead], bool)
        axes = tuple({lead, a.ndim - 1})
        before, after = (jnp.max(jnp.abs(v), axis=axes, initial=0) for v in (a, b))
        lost = before > error_bound(a.dtype) / jnp.finfo(a.dtype).eps * after
        return jnp.any(lost, axis=tuple(range(lead, lost.ndim)))

    return functools.reduce(jnp.logical_or, jax.tree.leaves(jax.tree.map(leaf, old, new)))
