"""Algorithm 1 of BPPSA, step by step: which products a truncated scan of a chain makes.

The array is a[0] = gradient, a[k] = M_k for k = 1..n, the transposed Jacobians from the last layer
to the first. A step makes the product M_hi ... M_lo of a span, or applies it to a vector. a[n] is
overwritten by the identity: it is never applied, and products that end there are never made.

Source: BPPSA, Algorithm 1 and section 5.3 (truncation).
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

Span = tuple[int, int]
"""(lo, hi): the factors M_hi ... M_lo; the vector that M_lo takes has passed lo - 1 factors."""

UP, LINEAR, DOWN = "up", "linear", "down"
PRODUCT, APPLY = "mm", "mv"


class Step(NamedTuple):
    """One ⋄ of the scan.

    Attributes:
        kind: `PRODUCT`, or `APPLY` to the gradient that has passed ``span[0] - 1`` factors.
        phase: `UP`, `LINEAR` or `DOWN`.
        level: steps of a level may run at once; levels follow each other.
        span: what is made, or applied.
        split: of a product, the last factor of its right operand.
    """

    kind: str
    phase: str
    level: int
    span: Span
    split: int | None = None

    @property
    def operands(self) -> tuple[Span, ...]:
        """The spans that are multiplied, left before right, or the one that is applied."""
        if self.split is None:
            return (self.span,)
        return (self.split + 1, self.span[1]), (self.span[0], self.split)


def depth(n: int) -> int:
    """Levels of the whole up-sweep over n factors and the gradient."""
    return max(math.ceil(math.log2(n + 1)) - 1, 0)


def truncated(n: int, up_levels: int) -> list[Step]:
    """The steps of the scan whose up-sweep has at most ``up_levels`` levels; 0 is linear.

    Args:
        n: number of factors, the first layer's included.
        up_levels: L_m in the figures; from `depth` on, the whole scan.

    Raises:
        ValueError: ``n`` or ``up_levels`` is too small.

    Example:
        >>> [(s.kind, s.span) for s in truncated(4, 1)]
        [('mv', (1, 1)), ('mm', (2, 3)), ('mv', (2, 3)), ('mv', (2, 2))]
    """
    if n < 1 or up_levels < 0:
        raise ValueError(f"n, up_levels: got {n}, {up_levels}; at least 1 and 0 are wanted")
    levels = min(up_levels, depth(n))
    # A span (1, k) is the gradient that has passed k factors; a[0] is (1, 0).
    a: list[Span | None] = [(1, 0), *((k, k) for k in range(1, n + 1))]
    steps: list[Step] = []

    def combine(first: Span, second: Span, phase: str, level: int) -> Span:
        whole = (first[0], second[1])
        if first[0] == 1:
            steps.append(Step(APPLY, phase, level, second))
        else:
            steps.append(Step(PRODUCT, phase, level, whole, first[1]))
        return whole

    for d in range(levels):
        for l, r in _pairs(n, d):
            if r < n:
                a[r] = combine(a[l], a[r], UP, d)
    reached: Span | None = None
    for count, i in enumerate(range(2**levels - 1, n, 2**levels)):
        before, own = reached, a[i]
        reached = own if before is None else combine(before, own, LINEAR, levels + count)
        a[i] = before
    a[n] = reached
    last = 1 + max((step.level for step in steps), default=0)
    for d in reversed(range(levels)):
        for l, r in _pairs(n, d):
            own, a[l] = a[l], a[r]
            if a[r] is None:
                a[r] = own
            else:
                a[r] = combine(a[r], own, DOWN, last + levels - 1 - d)
    return steps


def critical(steps: list[Step], costs: Mapping[Step, float]) -> set[Step]:
    """The costliest step of each level: the critical path with unlimited workers."""
    longest: dict[int, Step] = {}
    for step in steps:
        if step.level not in longest or costs[step] > costs[longest[step.level]]:
            longest[step.level] = step
    return set(longest.values())


def _pairs(n: int, d: int) -> list[tuple[int, int]]:
    starts = range(0, n - 2**d + 1, 2 ** (d + 1))
    return [(i + 2**d - 1, min(i + 2 ** (d + 1) - 1, n)) for i in starts]
