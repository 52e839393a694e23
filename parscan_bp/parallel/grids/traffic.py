"""What a layer sends: collectives by kind and bytes, forward and backward."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterable

import jax

from parscan_bp.trees import nbytes
from parscan_bp.types import PyTree


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective of a compiled program, as each of its devices sees it.

    Attributes:
      kind: "all-gather", "all-reduce", "all-to-all" or "collective-permute".
      bytes: of its result on one device, which is what a compiled program shows.
      group: number of devices that take part.
    """

    kind: str
    bytes: int
    group: int

    def seconds(self, alpha: float, beta: float) -> float:
        """alpha ceil(log2 p) + beta n (p - 1) / p; an all-reduce twice that, a pair alpha + beta n.

        Args:
          alpha: latency in seconds.
          beta: seconds a byte.

        Source: Gholami et al. 2018, below eq. 3 (Bruck's all-gather, ring all-reduce).
        """
        if self.kind == "collective-permute":
            return alpha + beta * self.bytes
        steps = math.ceil(math.log2(self.group))
        once = alpha * steps + beta * self.bytes * (self.group - 1) / self.group
        return 2 * once if self.kind == "all-reduce" else once


@dataclasses.dataclass(frozen=True)
class LayerTraffic:
    """The collectives of a layer.

    Attributes:
      forward: for its value.
      to_input: for the cotangent of its input, given that of its output.
      to_params: for the cotangents of its parameters.
    """

    forward: tuple[Collective, ...] = ()
    to_input: tuple[Collective, ...] = ()
    to_params: tuple[Collective, ...] = ()

    def backward(self, input_moves: bool) -> tuple[Collective, ...]:
        """Of the backward pass; the input's cotangent is not made if nothing before it moves."""
        return (*(self.to_input if input_moves else ()), *self.to_params)


def totals(collectives: Iterable[Collective]) -> dict[str, int]:
    """Bytes by kind."""
    found: dict[str, int] = collections.defaultdict(int)
    for one in collectives:
        found[one.kind] += one.bytes
    return dict(sorted(found.items()))


def reduced(tree: PyTree, group: int) -> tuple[Collective, ...]:
    """An all-reduce of every leaf, arrays or their types, over so many devices."""
    if group == 1:
        return ()
    return tuple(Collective("all-reduce", nbytes(leaf), group) for leaf in jax.tree.leaves(tree))
