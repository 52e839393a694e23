"""A grid of operators, most of whose places are zero: a step between the live sets of a graph."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, final

import jax
import jax.numpy as jnp
import numpy as np

from parscan_bp.operators.algebra import compose, product_and_cost
from parscan_bp.operators.arithmetic import accumulation_dtype
from parscan_bp.operators.base import Cost, Operator
from parscan_bp.operators.dense import Dense
from parscan_bp.operators.diagonal import Diagonal
from parscan_bp.operators.lattice import brought
from parscan_bp.operators.matrix_free import MatrixFree
from parscan_bp.operators.pairs import FULL
from parscan_bp.operators.sum import Sum
from parscan_bp.types import Array

_STATIC = {"static": True}

Term = tuple[int, int, Operator]
"""Row and column in the grid, and what stands there."""


@final
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class BlockSparse(Operator):
    """(A v)_i = sum_j A_ij v_j over the places (i, j) of a grid that have a block.

    The blocks are operators of any structures, and keep them: the identity of what passes through
    is never multiplied. The product of two whose grids fit is one of these, block by block, in
    the structure of each product of blocks; what comes to one place is added: diagonals are a
    diagonal, what is full is a matrix, and the others a `Sum`.

    Args:
      blocks: operators; their stacks broadcast.
      places: (row, column) in the grid of each block, none twice.
      rows: sizes of the grid's rows.
      cols: sizes of its columns.

    Raises:
      TypeError: if a block is not an operator, when the `shape` is first needed.
      ValueError: if there is no block; if there are not as many places, a place stands twice or
        outside of the grid, or a block has another size than its place, when the `shape` is first
        needed.

    Source: M. Naumov, "Parallel complexity of forward and backward propagation", 2017, section 5:
    the sparsity of more complex triangular systems, here within the blocks of a bi-diagonal one.

    Example: one value passes through, and is added to what is made of another one.
      >>> import jax.numpy as jnp
      >>> from parscan_bp.operators import BlockSparse, Dense, Identity
      >>> blocks = (Identity(2), Dense(jnp.array([[1.0], [10.0], [100.0]])))
      >>> op = BlockSparse(blocks, ((0, 0), (1, 1)), rows=(2, 3), cols=(2, 1))
      >>> op.matvec(jnp.array([5.0, 6.0, 1.0])).tolist()
      [5.0, 6.0, 1.0, 10.0, 100.0]
      >>> op.nnz, op.shape
      (5, (5, 3))
    """

    blocks: Sequence[Operator]
    places: tuple[tuple[int, int], ...] = dataclasses.field(metadata=_STATIC)
    rows: tuple[int, ...] = dataclasses.field(metadata=_STATIC)
    cols: tuple[int, ...] = dataclasses.field(metadata=_STATIC)

    patterned: ClassVar = True

    def __post_init__(self):
        if isinstance(self.blocks, (tuple, list)) and not self.blocks:
            raise ValueError("blocks: got none; at least one operator is wanted")
        if isinstance(self.blocks, list):
            object.__setattr__(self, "blocks", tuple(self.blocks))

    @classmethod
    def of(cls, terms: Iterable[Term], rows: tuple[int, ...], cols: tuple[int, ...]) -> BlockSparse:
        """From (row, column, operator), where those of one place are added.

        Example:
          >>> from parscan_bp.operators import BlockSparse, Identity
          >>> BlockSparse.of([(0, 0, Identity(1)), (0, 0, Identity(1))], (1,), (1,)).blocks
          (Diagonal(diagonal=Array([2.], dtype=float32)),)
        """
        at: dict[tuple[int, int], list[Operator]] = {}
        for row, col, op in terms:
            at.setdefault((row, col), []).append(op)
        places = tuple(sorted(at))
        return cls(tuple(_added(at[place]) for place in places), places, rows, cols)

    @property
    def shape(self):
        if len(self.places) != len(self.blocks):
            raise ValueError(
                f"places: got {len(self.places)} for {len(self.blocks)} blocks; one for each is "
                "wanted"
            )
        for k, (block, place) in enumerate(zip(self.blocks, self.places, strict=True)):
            if not isinstance(block, Operator):
                raise TypeError(f"blocks[{k}]: got {type(block).__name__}; an Operator is wanted")
            row, col = place
            if not (0 <= row < len(self.rows) and 0 <= col < len(self.cols)):
                raise ValueError(
                    f"places[{k}]: got {place}; one in the grid of {len(self.rows)} times "
                    f"{len(self.cols)} is wanted"
                )
            if place in self.places[:k]:
                raise ValueError(f"places[{k}]: got {place} twice; BlockSparse.of adds them")
            if block.shape != (self.rows[row], self.cols[col]):
                raise ValueError(
                    f"blocks[{k}]: got {block.shape}; the place {place} is of "
                    f"{(self.rows[row], self.cols[col])}"
                )
        return (sum(self.rows), sum(self.cols))

    @property
    def dtype(self):
        return _dtype(self.blocks)

    @property
    def nnz(self):
        return sum(block.nnz for block in self.blocks)

    @property
    def composes(self):  # type: ignore[override]
        return all(block.composes for block in self.blocks)

    @property
    def multilinear(self):  # type: ignore[override]
        return all(block.multilinear for block in self.blocks)

    def map_leaves(self, f):
        return dataclasses.replace(self, blocks=tuple(b.map_leaves(f) for b in self.blocks))

    def matvec(self, v):
        self.check_vector(v)
        lead = np.broadcast_shapes(jnp.shape(v)[:-1], self.stack_shape)
        parts = jnp.split(v, _edges(self.cols)[1:-1], axis=-1)
        dtype = v.dtype if not self.leaves() else jnp.result_type(self.dtype, v)
        wide = accumulation_dtype(dtype)
        terms: list[list[Array]] = [[] for _ in self.rows]
        for block, (row, col) in zip(self.blocks, self.places, strict=True):
            terms[row].append(_applied(block, parts[col]).astype(wide))
        zeros = jnp.zeros_like(v, wide, shape=(*lead, max(self.rows)))
        sums = [
            jnp.broadcast_to(functools.reduce(jnp.add, own), (*lead, size))
            if own
            else zeros[..., :size]
            for own, size in zip(terms, self.rows, strict=True)
        ]
        return jnp.concatenate(sums, axis=-1).astype(dtype)

    def transpose(self):
        turned = sorted(zip(self.places, self.blocks, strict=True), key=lambda one: one[0][::-1])
        blocks = tuple(block.transpose() for _, block in turned)
        return BlockSparse(
            blocks, tuple(place[::-1] for place, _ in turned), rows=self.cols, cols=self.rows
        )

    def as_dense(self):
        dense = jnp.zeros((*self.stack_shape, *self.shape), self.dtype)
        rows, cols = _edges(self.rows), _edges(self.cols)
        for block, (i, j) in zip(self.blocks, self.places, strict=True):
            at = (..., slice(rows[i], rows[i + 1]), slice(cols[j], cols[j + 1]))
            dense = dense.at[at].set(block.as_dense().astype(self.dtype))
        return dense

    def cost(self) -> Cost:
        """The blocks' own, and one addition per entry of each that is not the first of its row."""
        stack = self.stack_shape
        rows = [row for row, _ in self.places]
        added = sum(self.rows[row] for row in rows) - sum(self.rows[row] for row in set(rows))
        sums = Cost(self.cost_of(added).flops, 0)
        return sum((block.cost_over(stack) for block in self.blocks), sums)

    def multiplies(self, first):
        fits = isinstance(first, BlockSparse) and self.cols == first.rows
        return fits and self.composes and first.composes

    def after(self, first):
        return self._product(first, compose, BlockSparse.of)

    def product_shape(self, first):
        def of(terms, rows, cols):
            places = [term[:2] for term in terms]

            def add(ops):
                each = zip(places, ops, strict=True)
                return BlockSparse.of([(*place, op) for place, op in each], rows, cols)

            return jax.eval_shape(add, [op for _, _, op in terms])

        return self._product(first, lambda a, b: product_and_cost(a, b)[0], of)

    def product_flops(self, first):
        maps = lambda a, b: math.prod(np.broadcast_shapes(a.stack_shape, b.stack_shape))  # noqa: E731
        pairs = [(a, b) for _, _, a, b in self._pairs(first)]
        return sum(product_and_cost(a, b)[1].flops // max(maps(a, b), 1) for a, b in pairs)

    def _pairs(self, first: BlockSparse) -> list[tuple[int, int, Operator, Operator]]:
        """Rows and columns of the product, with the blocks that meet there: first, then own."""
        own, theirs = (list(zip(op.places, op.blocks, strict=True)) for op in (self, first))
        both = itertools.product(own, theirs)
        return [(i, j, a, b) for ((i, k), b), ((m, j), a) in both if k == m]

    def _product(self, first: BlockSparse, multiply: Callable, of: Callable) -> BlockSparse:
        terms = [(i, j, multiply(a, b)) for i, j, a, b in self._pairs(first)]
        if not terms:  # no path leads from one to the other: a block of zeros
            dtype = jnp.result_type(self.dtype, first.dtype)
            terms = [(0, 0, Dense(jnp.zeros((self.rows[0], first.cols[0]), dtype)))]
        return of(terms, self.rows, first.cols)


def _applied(block: Operator, v: Array) -> Array:
    """A v; what is matrix-free takes vectors of its own dtype, not those of the whole grid."""
    if isinstance(block, Sum):
        return functools.reduce(jnp.add, [_applied(term, v) for term in block.terms])
    return block.matvec(v.astype(block.vector_dtype) if isinstance(block, MatrixFree) else v)


def _added(ops: Sequence[Operator]) -> Operator:
    """The sum of operators of one shape: a diagonal, a `Dense` where it is full, else a `Sum`."""
    if len(ops) == 1:
        return ops[0]
    diagonals = [op for op in (brought(op, Diagonal) for op in ops) if isinstance(op, Diagonal)]
    if len(diagonals) == len(ops):
        return Diagonal(_total([op.diagonal for op in diagonals], _dtype(ops)))
    full = sum(op.nnz for op in ops) > FULL * math.prod(ops[0].shape)
    if full and all(op.composes for op in ops):
        return Dense(_total([op.as_dense() for op in ops], _dtype(ops)))
    return Sum(tuple(ops))


def _total(arrays: Sequence[Array], dtype: np.dtype) -> Array:
    wide = accumulation_dtype(dtype)
    return functools.reduce(jnp.add, [a.astype(wide) for a in arrays]).astype(dtype)


def _dtype(ops: Sequence[Operator]) -> np.dtype:
    """The common dtype of those that have arrays, as others promote nothing."""
    with_leaves = [op.dtype for op in ops if op.leaves()]
    return jnp.result_type(*(with_leaves or [ops[0].dtype]))


def _edges(sizes: tuple[int, ...]) -> list[int]:
    """Where each part begins, and the last one ends."""
    return [0, *itertools.accumulate(sizes)]
