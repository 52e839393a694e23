"""The part of a scan's linear system that given cotangents reach; see `linear_solve.Part`."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import jax

from parscan_bp.linearise.active import Active
from parscan_bp.primitives.linear_solve import Part

if TYPE_CHECKING:
    from parscan_bp.scan.rule import ScanRule


def backward_part(rule: ScanRule, active: Active, nonzero: Sequence[bool]) -> Part:
    """What cotangents reach that are not zero.

    Args:
      rule: the scan.
      active: what is differentiated.
      nonzero: for each leaf of the right-hand side of the transposed system, whether it is other
        than zero.
    """
    floats, flags = rule.body.float_carry, iter(nonzero)
    groups = (active.consts, floats, active.x, floats, floats, active.y)
    *_, d, last, dy = [[next(flags) for _ in group] for group in groups]
    start = [k for k, a, b in zip(floats, d, last, strict=True) if a or b]
    y = tuple(itertools.compress(active.y, dy))
    consts, carry, x = rule.body.reach.backward(start, y)
    smaller = rule.restricted(_those(floats, carry))
    part = Active(_those(active.consts, consts), _those(active.x, x), y)
    solved = smaller.body.float_carry if start or y else ()
    left = (part.consts, solved, part.x, solved, solved, y)
    reached = tuple(k in kept for group, kept in zip(groups, left, strict=True) for k in group)
    if smaller is rule and y == active.y:
        return Part(None, None, reached)
    b = jax.tree.structure(tuple(map(list, left)))
    return Part(smaller.solve(part), b, reached, hinted=smaller is rule)


def _those(positions: Sequence[int], kept: Collection[int]) -> tuple[int, ...]:
    return tuple(k for k in positions if k in kept)
