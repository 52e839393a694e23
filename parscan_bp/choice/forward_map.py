"""Where methods that evaluate a recurrence in parallel were faster than `jax.lax.scan`: a map.

It is what `python -m bench forward` measured, shipped as data: for recurrences of a few kinds and
sizes, how many times as fast as the sequential pass each method was with its certificate, and how
many iterations it took. Nothing is interpolated: a size that lies between is as slow as the slowest
of the points around it, and what is not near any point is not known.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from parscan_bp.choice.facts import Facts
from parscan_bp.measured import measured

NEAR = 4
"""Sizes are near to one another within less than this factor."""


@dataclasses.dataclass(frozen=True)
class Point:
    """A recurrence that was measured.

    Attributes:
      platform, jax_version, structure, leaves: as of `Facts`. A version of JAX is taken for the
        last one up to it that was measured.
      products: whether its step multiplies by fixed weights.
      equations, features, batch, length: its sizes, as of `Facts`.
      methods: for each, how many times as fast as `jax.lax.scan` it was, and its iterations; those
        that did not converge are not there.
    """

    platform: str
    jax_version: tuple[int, ...]
    structure: str
    leaves: int
    products: bool
    equations: int
    features: int
    batch: int
    length: int
    methods: Mapping[str, tuple[float, int]]

    @classmethod
    def of_json(cls, held: Mapping[str, Any]) -> Point:
        methods = {name: (float(s), int(k)) for name, (s, k) in held["methods"].items()}
        version = tuple(held["jax_version"])
        return cls(**{**held, "jax_version": version, "methods": methods})

    def is_near(self, facts: Facts, *, products: bool) -> bool:
        """Whether what was measured here says something of a recurrence with these facts."""
        if (self.platform, self.structure, self.leaves, self.products) != (
            facts.platform,
            facts.structure,
            facts.leaves,
            products,
        ):
            return False
        sizes = ("equations", "features", "batch", "length")
        pairs = [(getattr(self, name), getattr(facts, name)) for name in sizes]
        return all(max(a, b) < NEAR * min(a, b) for a, b in pairs)


@dataclasses.dataclass(frozen=True)
class ForwardMap:
    """All that was measured.

    Attributes:
      points: the recurrences.
      margin: a method is taken where it is expected to be so many times as fast.
    """

    points: tuple[Point, ...]
    margin: float

    def speedup(
        self, facts: Facts, *, products: bool, method: str, iterations: int
    ) -> float | None:
        """How many times as fast as `jax.lax.scan` a method is expected to be; ``None``: unknown.

        It is the least of what was measured near by, less by as much as it took fewer iterations.
        """
        found = []
        for point in self._of_version(facts.jax_version):
            if not point.is_near(facts, products=products):
                continue
            if method not in point.methods:
                return None
            speedup, taken = point.methods[method]
            found.append(speedup * min(1.0, max(taken, 1) / max(iterations, 1)))
        return min(found, default=None)

    def _of_version(self, version: tuple[int, ...]) -> list[Point]:
        known = {point.jax_version for point in self.points if point.jax_version <= version}
        return [p for p in self.points if known and p.jax_version == max(known)]


@functools.lru_cache
def forward_map() -> ForwardMap:
    """The map that the package has.

    Example:
      >>> forward_map().margin >= 1
      True
    """
    held = measured("forward")
    return ForwardMap(tuple(map(Point.of_json, held["points"])), held["margin"])
