"""Dynamic programming over the parenthesisation of a chain."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator

from parscan_bp.planner.schedule import ProductOrder, Tree
from parscan_bp.planner.table import LONGEST, ProductTable

PENALTIES = (0.0, 0.03, 0.1, 0.3, 1.0)
"""What a second of all workers counts beside one on the critical path, for few workers."""


def order_candidates(table: ProductTable, workers: int, most_bytes: int) -> Iterator[ProductOrder]:
    """Schedules that are good in one sense each.

    Args:
      table: costs.
      workers: number of workers.
      most_bytes: bytes that a single product may take.
    """
    yield _least_work(table, _Products(table, most_bytes, hide=False))
    if workers > 1:
        products = _Products(table, most_bytes, hide=True)
        for penalty in PENALTIES:
            yield _shortest_path(table, products, penalty)


class _Products:
    """The best product of each stretch: that of least work, or the one that is ready first.

    A product that takes longer than the linear scan is of no use to any schedule.
    """

    def __init__(self, table: ProductTable, most_bytes: int, hide: bool):
        self.table, self.most_bytes, self.hide = table, most_bytes, hide
        self._best: dict[tuple[int, int], tuple[float, float, Tree] | None] = {}

    def best(self, i: int, j: int) -> tuple[float, float, Tree] | None:
        """(work, time until it is ready, product) of A_i ... A_{j-1}, or ``None``."""
        if j - i == 1:
            return 0.0, 0.0, i
        if (i, j) not in self._best:
            found = [f for k in range(i + 1, j) if (f := self._split(i, k, j)) is not None]
            key: Callable = lambda f: f[1 if self.hide else 0]  # noqa: E731
            self._best[i, j] = min(found, key=key, default=None)
        return self._best[i, j]

    def _split(self, i: int, k: int, j: int) -> tuple[float, float, Tree] | None:
        left, right = self.best(i, k), self.best(k, j)
        if left is None or right is None:
            return None
        tree, most = (left[2], right[2]), self.table.linear
        made = self.table.product(tree, most)
        if made is None or made.seconds > most or made.nbytes > self.most_bytes:
            return None
        return left[0] + right[0] + made.seconds, max(left[1], right[1]) + made.seconds, tree


def _least_work(table: ProductTable, products: _Products) -> ProductOrder:
    """Fewest seconds of one worker.

    With route(i, j) what lambda_i and all that is wanted between i and j take, given lambda_j:

        route(i, j) = min over i < k <= j of
            product(i, k) + push(i, k) + route(first wanted in (i, k), k) + route(k, j),

    and nothing for the third term where nothing is wanted in between, for the last if k = j.
    """
    n, wanted = table.length, table.problem.wanted

    @functools.cache
    def route(i: int, j: int) -> tuple[float, tuple[Tree, ...]]:
        best: tuple[float, tuple[Tree, ...]] = (math.inf, ())
        for k in range(i + 1, min(j, i + LONGEST) + 1):
            product = products.best(i, k)
            if product is None:
                continue
            work, _, tree = product
            if isinstance(tree, int):
                work = table.forming(tree)
            inner = next((w for w in wanted if i < w < k), None)
            side = route(inner, k) if inner is not None else (0.0, ())
            rest = route(k, j) if k < j else (0.0, ())
            seconds = work + table.push(tree).seconds + side[0] + rest[0]
            if seconds < best[0]:
                best = seconds, (*rest[1], tree, *side[1])
        return best

    for i in range(n - 1, min(wanted) - 1, -1):
        seconds, pushes = route(i, n)
        assert seconds < math.inf
    return ProductOrder(n, pushes)


def _shortest_path(table: ProductTable, products: _Products, penalty: float) -> ProductOrder:
    """Each vector as early as possible, products being made in the shadow of earlier pushes.

    ready(i) = min over j of max(ready(j), product(i, j)) + push(i, j), to which a part of the
    product's work is added so that few workers do not drown in it.
    """
    n = table.length
    ready, pushes = {n: 0.0}, []
    for i in range(n - 1, -1, -1):
        best: tuple[float, float, Tree] | None = None
        for j in range(i + 1, min(n, i + LONGEST) + 1):
            product = products.best(i, j)
            if product is None:
                continue
            work, made, tree = product
            if isinstance(tree, int):
                work = made = table.forming(tree)
            at = max(ready[j], made) + table.push(tree).seconds
            if best is None or at + penalty * work < best[0]:
                best = at + penalty * work, at, tree
        assert best is not None
        ready[i] = best[1]
        pushes.append(best[2])
    return ProductOrder(n, tuple(pushes)).only(table.problem.wanted)
