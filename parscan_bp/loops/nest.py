"""What derivatives of a loop store: stretches of steps in groups of growing depth.

A loop of n steps is run again as a *nest*, which holds any n up to its bound. Its innermost
stretches have B steps, S of these make a stretch of the next level, and each stretch enters what a
derivative stores with its first carry. The groups of the nest come one after the other:

    group   levels   steps                  each of them is made again
    1       1        F B, F few             once
    2       1        S B                    once
    3       2        S^2 B                  twice
    4       4        S^4 B                  four times

so that a short loop pays one level and looks at few stretches behind its end, and a long one pays
less than twice the levels that it needs; the last group has no more of them than the bound asks
for. A stretch that the loop does not reach is passed over: what runs are n steps, and no more than
B - 1 that are masked. With c bytes of a carry, s of a step, k of the steps that a solver has at
once and w of the cotangents of what all steps share, of which there are two to a group and to a
level, G groups of L levels at most take

    G S c + (L - 1) S c + B s + k + 2 (G + L) w.

What is stored does not depend on n: XLA reserves it for the longest loop.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator

from parscan_bp.measured import measured
from parscan_bp.scan.storage import StoredBytes

MOST_STEPS = 2**30
"""Of the longest loop with a derivative: steps are counted in 32 bits."""


@dataclasses.dataclass(frozen=True)
class Group:
    """Stretches of stretches of steps.

    Attributes:
      first: steps before it.
      count: its outermost stretches.
      sizes: steps of a stretch, from the outermost level in.
    """

    first: int
    count: int
    sizes: tuple[int, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """How many stretches there are, in each how many of the next level; at last the steps."""
        inside = [a // b for a, b in itertools.pairwise(self.sizes)]
        return (self.count, *inside, self.sizes[-1])

    @property
    def is_one_stretch(self) -> bool:
        """Whether there is no other stretch, in this group or before it, nor a level around it."""
        return self.first == 0 and self.counts[:-1] == (1,)


@dataclasses.dataclass(frozen=True)
class Nest:
    """All groups of a loop.

    Attributes:
      groups: in the order of the steps.
    """

    groups: tuple[Group, ...]

    @classmethod
    def of(cls, bound: int, slots: int, stretch: int) -> Nest:
        """The nest of at most so many steps, of S slots and stretches of B steps."""
        found: list[Group] = []
        first, depth = 0, 1
        stretch, here = min(stretch, bound), min(slots, measured("cpu")["loops"]["few"])
        while first < bound:
            left = bound - first
            while depth > 1 and stretch * slots ** (depth - 1) >= left:
                depth -= 1
            sizes = tuple(stretch * slots**k for k in reversed(range(depth)))
            count = min(here, math.ceil(left / sizes[0]))
            depth, here = depth * 2 if found else 1, slots
            found.append(Group(first, count, sizes))
            first += count * sizes[0]
        return cls(tuple(found))

    @property
    def depth(self) -> int:
        """How often a step is made again at most."""
        return max(len(group.sizes) for group in self.groups)

    def bytes(self, costs: StoredBytes) -> int:
        """What a derivative stores."""
        outermost = sum(group.count for group in self.groups)
        inside = max(sum(group.counts[1:-1]) for group in self.groups)
        steps = self.groups[0].sizes[-1]
        sums = 2 * (len(self.groups) + self.depth)
        stored = (outermost + inside) * costs.carry + steps * costs.step + sums * costs.shared
        return stored + costs.solving(steps)

    @property
    def kept(self) -> str:
        """What that is."""
        groups = [" of ".join(map(str, group.counts)) for group in self.groups]
        return f"the carries of stretches: {', then '.join(groups)} steps"


def nest_within(bound: int, costs: StoredBytes | None, limit: int | None) -> Nest:
    """The nest of at most so many steps that meets a limit: of the fewest levels, with most slots.

    Args:
      bound: steps.
      costs: bytes that they take; ``None`` where there is no limit.
      limit: bytes; ``None`` for slots and stretches as they come.

    Raises:
      ValueError: if there is none within the limit, with the least that would do.
    """
    known = measured("cpu")["loops"]
    if limit is None or costs is None:
        return Nest.of(bound, known["slots"], known["stretch"])
    sized = {(slots, size): Nest.of(bound, slots, size) for slots, size in _candidates(known)}
    fits = {key: nest for key, nest in sized.items() if nest.bytes(costs) <= limit}
    if not fits:
        least = min(sized.values(), key=lambda nest: nest.bytes(costs))
        raise ValueError(
            f"memory_limit: got {limit:,} bytes; {least.bytes(costs):,} are the least that a "
            f"derivative of at most {bound:,} steps takes, which stores {least.kept}"
        )
    best = min(fits, key=lambda key: (fits[key].depth, -key[1], -key[0]))
    return fits[best]


def _candidates(known: dict[str, int]) -> Iterator[tuple[int, int]]:
    """Numbers of slots, and of steps of a stretch."""
    size = known["stretch"]
    while size:
        slots = known["most_slots"]
        while slots >= 4:
            yield slots, size
            slots //= 2
        size //= 2
