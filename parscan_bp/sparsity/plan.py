"""The symbolic half of sparse products: which numbers meet, planned once from two patterns.

The plan of C = A B is a pytree of index arrays and is an *argument* of the jitted numeric half.
As constants of a program, ten million indices take seconds to compile.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import final

import jax
import jax.numpy as jnp
import numpy as np

from parscan_bp.originals import lax_scan
from parscan_bp.sparsity.pattern import Pattern, _from_keys, on_device
from parscan_bp.trees import eval_shape
from parscan_bp.types import Array

UNROLLED = 16
"""Further terms per entry up to which a sum is unrolled; longer ones are added one by one."""

_CHUNK = 2**24
"""Scalar products that the symbolic phase lists at a time."""


def count_products(a: Pattern, b: Pattern) -> int:
    """Scalar multiplications of A B: pairs of an entry of A and one of B that meet."""
    return int(a.column_counts @ b.row_counts)


@functools.lru_cache(maxsize=512)
def multiply(a: Pattern, b: Pattern) -> Pattern:
    """The pattern of A B, entries that happen to cancel included.

    Args:
      a: the left factor.
      b: the right factor; its rows are the columns of ``a``.

    Returns:
      The pattern of the product.

    Raises:
      ValueError: if the sizes do not fit.

    Example:
      >>> shift = Pattern.from_coordinates([0, 1], [1, 2], (3, 3))
      >>> two = multiply(shift, shift)
      >>> two.rows.tolist(), two.indices.tolist()
      ([0], [2])
    """
    shape = _check_sizes(a, b)
    keys = [_distinct(keys) for keys, _, _ in _products(a, b)]
    return _from_keys(np.concatenate([np.zeros(0, np.int64), *keys]), shape)


def _distinct(keys: np.ndarray) -> np.ndarray:
    """The sorted keys, each once; `numpy.unique` hashes, at twenty times the cost of sorting."""
    keys = np.sort(keys)
    return keys[np.append(True, keys[1:] != keys[:-1])[: keys.size]]


def _check_sizes(a: Pattern, b: Pattern) -> tuple[int, int]:
    if a.shape[1] != b.shape[0]:
        raise ValueError(
            f"a, b: got {a.shape} and {b.shape}; the rows of b must be the columns of a"
        )
    return (a.shape[0], b.shape[1])


def _products(a: Pattern, b: Pattern) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(row * cols + col, entry of a, entry of b) of every product, some rows of A at a time."""
    counts = b.row_counts[a.indices]
    ends = np.concatenate([[0], np.cumsum(counts)])
    row_ends = ends[a.indptr]
    start = 0
    while start < a.shape[0]:
        stop = int(np.searchsorted(row_ends, row_ends[start] + _CHUNK, side="right")) - 1
        stop = max(stop, start + 1)
        part = slice(a.indptr[start], a.indptr[stop])
        left = np.repeat(np.arange(part.start, part.stop), counts[part])
        # The entries of each row of B that is met, one after the other.
        within = np.arange(left.size) - np.repeat(ends[part] - ends[part.start], counts[part])
        right = b.indptr[a.indices[left]] + within
        yield a.rows[left].astype(np.int64) * b.shape[1] + b.indices[right], left, right
        start = stop


@final
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class ProductPlan:
    """Which entries of A and B make each entry of C = A B, entry by entry.

    Most sums of a sparse product have one term. So the first terms of all entries are made in
    their places, and what other terms there are is added: entries are grouped by the number K of
    their further terms, so that a group is K fused multiply-adds over arrays of one length.

    Attributes:
      first: for each entry of C, the entries of A and of B of its first term, (nnz,) each.
      groups: for each K up to `UNROLLED`, entries of A and of B, (K, m) each, and the m entries
        of C that they are added to.
      rest: of longer sums, further terms one by one: entry of A, of B, and of C, ascending.
      pattern: of C; static.
    """

    first: tuple[Array, Array]
    groups: tuple[tuple[Array, Array, Array], ...]
    rest: tuple[Array, Array, Array]
    pattern: Pattern = dataclasses.field(metadata={"static": True})

    @property
    def nbytes(self) -> int:
        """Bytes of all index arrays."""
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(self))

    def sum(self, term: Callable[[Array, Array], Array], axis: int) -> Array:
        """The entries of C, along ``axis`` counted from the end.

        Args:
          term: ``term(i, j)``, the products of the entries i of A and j of B.
          axis: a negative int, the entries' axis of what ``term`` gives.
        """
        total = term(*self.first)
        for left, right, entries in self.groups:
            terms = (term(left[k], right[k]) for k in range(left.shape[0]))
            total = _add_at(total, entries, functools.reduce(jnp.add, terms), axis, unique=True)
        if self.rest[0].size:
            left, right, entries = self.rest
            total = _add_at(total, entries, term(left, right), axis, unique=False)
        return total


@functools.lru_cache(maxsize=64)
def plan_product(a: Pattern, b: Pattern) -> ProductPlan:
    """Plans C = A B entry by entry.

    Args:
      a: the left factor.
      b: the right factor; its rows are the columns of ``a``.

    Returns:
      The plan; 8 bytes of indices per scalar product, and up to 4 for its place.

    Raises:
      ValueError: if the sizes do not fit.

    Source: the two-phase sparse product of Gustavson (1978), the symbolic phase hoisted out of
    the loop as BPPSA section 3.3 proposes.

    Example:
      >>> import jax.numpy as jnp
      >>> full = Pattern.from_mask([[1, 1], [1, 1]])
      >>> plan = plan_product(full, full)
      >>> a = jnp.array([1.0, 2.0, 3.0, 4.0])
      >>> plan.sum(lambda i, j: a[i] * a[j], axis=-1).tolist()
      [7.0, 10.0, 15.0, 22.0]
    """
    pattern = multiply(a, b)
    parts = list(_products(a, b))
    empty = np.zeros(0, np.int64)
    keys, left, right = (
        np.concatenate([empty, *(p[k] for p in parts)]).astype(np.int64) for k in range(3)
    )
    order = np.argsort(keys, kind="stable")
    keys, left, right = keys[order], left[order].astype(np.int32), right[order].astype(np.int32)
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]])[: keys.size])
    counts = np.diff(np.append(starts, keys.size))
    groups = []
    for terms in np.unique(counts[(counts > 1) & (counts <= UNROLLED + 1)]):
        chosen = np.flatnonzero(counts == terms)
        index = starts[chosen] + np.arange(1, terms)[:, None]
        groups.append((on_device(left[index]), on_device(right[index]), _int32(chosen)))
    further = np.repeat(counts > UNROLLED + 1, counts)
    further[starts] = False
    entries = np.repeat(np.arange(counts.size, dtype=np.int32), counts)[further]
    rest = (on_device(left[further]), on_device(right[further]), on_device(entries))
    first = (on_device(left[starts]), on_device(right[starts]))
    return ProductPlan(first, tuple(groups), rest, pattern)


def _add_at(total: Array, entries: Array, terms: Array, axis: int, *, unique: bool) -> Array:
    """``terms`` added at ascending ``entries`` of an axis that is counted from the end."""
    where = (..., entries, *[slice(None)] * (-1 - axis))
    return total.at[where].add(
        terms, indices_are_sorted=True, unique_indices=unique, mode="promise_in_bounds"
    )


@final
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class BlockPlan:
    """Which blocks of A and B make each block of C = A B, by the index k that is summed.

    The blocks in column k of A, one above the other, times those in row k of B, side by side,
    are one large matrix product; its blocks are added where they belong in C.

    Attributes:
      groups: for each size of column and row: blocks of A (ks, I), blocks of B (ks, O), and the
        blocks of C (ks, I, O) to which their products are added.
      pattern: of C; static.
    """

    groups: tuple[tuple[Array, Array, Array], ...]
    pattern: Pattern = dataclasses.field(metadata={"static": True})

    def multiply(self, a: Array, b: Array, matmul: Callable[[Array, Array], Array]) -> Array:
        """The blocks (nnz, i, k) of C from those of A (entries, i, j) and B (entries, j, k)."""
        (_, i, j), k = a.shape, b.shape[-1]

        def step(total, index):
            left, right, target = index
            tall = a[left].reshape(-1, j)
            wide = jnp.swapaxes(b[right], 0, 1).reshape(j, -1)
            product = matmul(tall, wide).reshape(left.size, i, right.size, k)
            return total.at[target].add(jnp.swapaxes(product, 1, 2), unique_indices=True), None

        like = eval_shape(matmul, a[0], b[0]) if self.groups else jnp.result_type(a, b)
        total = jnp.zeros((self.pattern.nnz, i, k), getattr(like, "dtype", like))
        for group in self.groups:
            total, _ = lax_scan(step, total, group)
        return total


@functools.lru_cache(maxsize=64)
def plan_blocks(a: Pattern, b: Pattern) -> BlockPlan:
    """Plans C = A B over blocks.

    Args:
      a: where the left factor has blocks.
      b: where the right factor has; its rows are the columns of ``a``.

    Returns:
      The plan; about 4 bytes of indices per product of two blocks.

    Raises:
      ValueError: if the sizes do not fit.

    Example:
      >>> import jax.numpy as jnp
      >>> full = Pattern.from_mask([[1, 1], [1, 1]])
      >>> a = jnp.array([1.0, 2.0, 3.0, 4.0])[:, None, None]
      >>> plan_blocks(full, full).multiply(a, a, jnp.matmul).ravel().tolist()
      [7.0, 10.0, 15.0, 22.0]
    """
    pattern = multiply(a, b)
    columns, by_column = a.transposed
    order = np.asarray(by_column)
    sizes = np.stack([columns.row_counts, b.row_counts], axis=1)
    keys = pattern.rows.astype(np.int64) * b.shape[1] + pattern.indices
    groups = []
    for tall, wide in np.unique(sizes[sizes.all(axis=1)], axis=0):
        chosen = np.flatnonzero((sizes == (tall, wide)).all(axis=1))
        left = order[columns.indptr[chosen][:, None] + np.arange(tall)]
        right = b.indptr[chosen][:, None] + np.arange(wide)
        wanted = a.rows[left].astype(np.int64)[:, :, None] * b.shape[1] + b.indices[right][:, None]
        target = np.searchsorted(keys, wanted)
        groups.append((_int32(left), _int32(right), _int32(target)))
    return BlockPlan(tuple(groups), pattern)


def _int32(index: np.ndarray) -> Array:
    return on_device(index.astype(np.int32))


def pick(x: Array, index: Array | np.ndarray, axis: int = -1) -> Array:
    """The entries ``index``, all of them inside, of an axis that is counted from the end."""
    where = (..., index, *[slice(None)] * (-1 - axis))
    return jnp.asarray(x).at[where].get(mode="promise_in_bounds")
