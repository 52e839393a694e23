"""Rewrites of the two programs of a `LinearStep`, each a file and a function ``step -> step``.

They may move what the loop reads, and join or regroup what it does; they may not multiply known
values with one another. What only XLA on one platform gains from is an operation of its own, which
is lowered by the platform (`row_product`): a program may be traced on another one than it runs on.
"""

from __future__ import annotations

import functools

from parscan_bp.linearise.linear_step import LinearStep
from parscan_bp.linearise.passes.arithmetic_inside import arithmetic_inside
from parscan_bp.linearise.passes.group import Grouped as Grouped
from parscan_bp.linearise.passes.group import group
from parscan_bp.linearise.passes.join_pads import join_pads
from parscan_bp.linearise.passes.rematerialise import rematerialise
from parscan_bp.linearise.passes.row_product import row_products


def fastest(step: LinearStep, grouped: Grouped, *, one_function: bool) -> LinearStep:
    """The same map as it runs fastest in a loop.

    Args:
      step: the map, of a vector of leaves.
      grouped: how these are grouped.
      one_function: whether the loop is one function.
    """
    last = arithmetic_inside if one_function else rematerialise
    for rewrite in (join_pads, row_products, functools.partial(group, grouped), last):
        step = rewrite(step)
    return step
