"""The product of a long chain, kept so that one map can change: a segment tree."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import final

import jax
import jax.numpy as jnp
from jax import lax

from bench.paper.products import append_identities, check_closed_stack
from parscan_bp.operators.algebra import compose
from parscan_bp.operators.base import Operator
from parscan_bp.operators.lattice import structure_of
from parscan_bp.types import Array


@final
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class ProductTree:
    """A_1 A_2 ... A_n with every partial product of the up-sweep kept.

    Where one map changes, log2 n products above it are made again and the others stay: an update
    costs log n products where a sweep of the chain costs n. The tree takes the memory of 2 n
    maps. Under `jax.jit` with ``donate_argnums`` an update changes it in place.

    Attributes:
      levels: stacks of operators: the maps themselves, padded with identities to a power of two,
        then products of pairs, down to one.
      length: number of maps without the padding; static.

    Source: the up-sweep of BPPSA Algorithm 1; Bentley, 1977 (segment trees).

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.operators import Diagonal
      >>> from bench.paper.product_tree import ProductTree
      >>> tree = ProductTree.of(Diagonal(jnp.array([[1.0], [2.0], [3.0]])))
      >>> tree.product.diagonal.tolist()
      [6.0]
      >>> tree.update(1, Diagonal(jnp.array([5.0]))).product.diagonal.tolist()
      [15.0]
    """

    levels: Sequence[Operator]
    length: int = dataclasses.field(metadata={"static": True})

    @classmethod
    def of(cls, op: Operator) -> ProductTree:
        """The tree of a stack of square maps, its scanned axis leading.

        Raises:
          TypeError: if ``op`` has a structure that is not closed under products.
          ValueError: if it has no scanned axis, or is not square.
        """
        length = check_closed_stack(op)
        size = 1 << max(length - 1, 0).bit_length()
        levels = [append_identities(op, size - length)]
        while size > 1:
            size //= 2
            left, right = (jax.tree.map(lambda a, k=k: a[k::2], levels[-1]) for k in (0, 1))
            levels.append(compose(right, left))
        return cls(tuple(levels), length)

    @property
    def product(self) -> Operator:
        """A_1 A_2 ... A_n."""
        return self.levels[-1].take(0)

    def update(self, index: int | Array, op: Operator) -> ProductTree:
        """The tree with another map at a place.

        Args:
          index: the place, counted from 0. May be traced; it is then clamped to the levels.
          op: the new map: the structure and shapes of one map of the tree.

        Raises:
          ValueError: if a static ``index`` lies outside of the chain, or ``op`` is another kind of
            map.
        """
        if isinstance(index, int) and not 0 <= index < self.length:
            raise ValueError(f"index: got {index}; the chain has {self.length} maps")
        _check_alike(op, jax.eval_shape(lambda: self.levels[0].take(0)))
        index = jnp.asarray(index)
        levels: list[Operator] = []
        for level in self.levels:
            if levels:
                index, below = index // 2, levels[-1]
                left, right = (below.take(2 * index + side) for side in (0, 1))
                op = compose(right, left)
            levels.append(_with(level, index, op))
        return ProductTree(tuple(levels), self.length)


def _with(level: Operator, index: Array, op: Operator) -> Operator:
    put = lambda a, one: lax.dynamic_update_index_in_dim(a, one, index, axis=0)  # noqa: E731
    return jax.tree.map(put, level, op)


def _check_alike(op: Operator, wanted: Operator) -> None:
    sizes = [[(a.shape, str(a.dtype)) for a in jax.tree.leaves(each)] for each in (op, wanted)]
    if structure_of(op) != structure_of(wanted) or sizes[0] != sizes[1]:
        raise ValueError(
            f"op: got {type(op).__name__} with leaves {sizes[0]}; one map of the tree is "
            f"{type(wanted).__name__} with leaves {sizes[1]}"
        )
