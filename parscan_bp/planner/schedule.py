"""Schedules: which neighbouring operators are multiplied before a vector is pushed through."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from parscan_bp.operators import Operator, compose
from parscan_bp.trees import add
from parscan_bp.types import Array

Tree = int | tuple["Tree", "Tree"]
"""An operator A_t, written t, or the product of two neighbouring stretches, first layers left."""


def span(tree: Tree) -> tuple[int, int]:
    """(i, j) of the product A_i ... A_{j-1}, which takes lambda_j to lambda_i."""
    return (tree, tree + 1) if isinstance(tree, int) else (span(tree[0])[0], span(tree[1])[1])


@dataclasses.dataclass(frozen=True)
class ProductOrder:
    """How the vectors lambda_i = g_i + A_i lambda_{i+1} of n operators are computed.

    Attributes:
      length: number of operators n; lambda_n is given.
      pushes: one product for each vector, in the order of execution. A product A_i ... A_{j-1}
        makes lambda_i of lambda_j, and is multiplied as its tree says.
    """

    length: int
    pushes: tuple[Tree, ...]

    @functools.cached_property
    def products(self) -> tuple[tuple[Tree, Tree], ...]:
        """The products that are made, each once and after its factors."""
        return tuple(dict.fromkeys(p for tree in self.pushes for p in _products(tree)))

    def only(self, wanted: Collection[int]) -> ProductOrder:
        """Without the pushes that no vector of ``wanted`` needs."""
        needed, kept = set(wanted), []
        for tree in reversed(self.pushes):
            to, source = span(tree)
            if to in needed:
                needed.add(source)
                kept.append(tree)
        return ProductOrder(self.length, tuple(reversed(kept)))


def _products(tree: Tree) -> Iterator[tuple[Tree, Tree]]:
    if isinstance(tree, tuple):
        yield from _products(tree[0])
        yield from _products(tree[1])
        yield tree


def linear(n: int) -> ProductOrder:
    """The linear scan of BPPSA section 3.6: no product.

    Example:
      >>> from parscan_bp.planner import linear
      >>> linear(3).pushes
      (2, 1, 0)
    """
    return ProductOrder(n, tuple(range(n - 1, -1, -1)))


def blelloch(n: int, up_levels: int | None = None) -> ProductOrder:
    """Algorithm 1 of BPPSA, or with ``up_levels`` its truncation of section 5.3.

    Stretches are counted from the last operator. The product that reaches the first operator is
    never used, and not made.

    Example:
      >>> from parscan_bp.planner import blelloch
      >>> blelloch(4).pushes
      ((2, 3), 3, 1, 0)
    """
    level: list[Tree] = list(range(n - 1, -1, -1))
    levels: list[list[Tree]] = []
    while len(level) > 1 and (up_levels is None or len(levels) < up_levels):
        levels.append(level)
        pairs: list[Tree] = [(level[j + 1], level[j]) for j in range(0, len(level) - 2, 2)]
        # The last node is a placeholder: it is counted and never used.
        level = [*pairs, level[-1]]
    pushes = level[:-1]
    for level in reversed(levels):
        pushes += level[: len(level) - 1 : 2]
    return ProductOrder(n, (*pushes, 0) if n else ())


def run_order(
    schedule: ProductOrder,
    operators: Sequence[Operator],
    g: Sequence[Array | None],
    unpacking: Collection[int] = (),
    form: Callable[[Operator], Operator] | None = None,
) -> list[Any]:
    """lambda_0..lambda_n, ``None`` where the schedule computes none.

    A product carries the vector b with lambda_i = P lambda_j + b along, which is ``None`` where
    no g stands on the way.

    Args:
      schedule: what to do.
      operators, g: the system.
      unpacking: positions of convolutions that are pushed through as matrices.
      form: applied to the factors of products.
    """
    maps: dict[Tree, tuple[Operator, Array | None]] = dict(
        enumerate(zip(operators, g[:-1], strict=True))
    )
    for left, right in schedule.products:
        (p, b), (q, c) = maps[left], maps[right]
        if form is not None:
            p, q = form(p), form(q)
        maps[left, right] = compose(q, p), add(b, _push(p, c))
    out: list[Any] = [*[None] * schedule.length, g[-1]]
    for tree in schedule.pushes:
        to, source = span(tree)
        p, b = maps[tree]
        out[to] = add(b, _push(p.unpacked() if tree in unpacking else p, out[source]))
    return out


def _push(op: Operator, v: Array | None) -> Array | None:
    return None if v is None else op.matvec(v)
