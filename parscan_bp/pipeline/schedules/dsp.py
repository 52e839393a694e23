"""Diversely stale parameters."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import final

from parscan_bp.arguments import as_int, described
from parscan_bp.pipeline.schedules.base import Schedule
from parscan_bp.pipeline.schedules.queued import queued
from parscan_bp.pipeline.schedules.task import Task


@final
@dataclasses.dataclass(frozen=True)
class DSP(Schedule):
    """Diversely Stale Parameters, DSP(p_0, ..., p_{K-1}; m_0, ..., m_{K-1}).

    Queues between the blocks delay outputs by p_k ticks, and error gradients by q_k; each block
    stores its inputs for m_k ticks, its layer-wise staleness. In each tick every block runs one
    batch forward and another one backward, after it has linearised itself again at that batch's
    stored input, with its newest weights:

        G_k = (d f_k(h_{k-1}; w_k^b) / d w_k)^T  prod_{i>k} (d f_i(h_{i-1}; w_i^b) / d h)^T  dl/dh

    with h made by the forward weights of each block and w^b its backward ones, m_k updates later
    (eq. 5). Input and error gradient of a batch meet if

        m_k = m_{k+1} + p_k + q_{k+1},    p_{K-1} = m_{K-1} = q_0 = 0.

    With all of p_k, q_k at least 1 the blocks of a tick need nothing from each other: a batch
    takes max_k (F_k + R_k + B_k), R_k the time to linearise again. With all 0 it is
    back-propagation. The last block, whose m is 0, has nothing to linearise again.

    Args:
      p: delays of the outputs of all blocks, in ticks.
      m: layer-wise staleness of all blocks, in ticks.
      q: delays of the error gradients that blocks send down; ``None`` takes what p and m imply.

    Raises:
      TypeError: if they are no sequences of integers.
      ValueError: if they differ in length, or the queues do not match, with the numbers.

    Source: DSP (Xu, Huo, Huang), section 3 and appendix A. The formulas are lost in the text that
    we have; this one fits all six configurations of its Table 1.

    Example:
      >>> import parscan_bp as pb
      >>> schedule = pb.pipeline.DSP((1, 1, 0), (4, 2, 0))
      >>> schedule.queues
      (0, 1, 1)
      >>> print(schedule.table(blocks=3, batches=5))
      DSP(1,1,0;4,2,0): 3 blocks, 5 batches
      tick  block 0         block 1         block 2
         0  F0@0
         1  F1@0            F0@0
         2  F2@0            F1@0            F0@0 B0@0 U0@0
         3  F3@0            F2@0 B0@0 U0@0  F1@1 B1@1 U1@1
         4  F4@0 B0@0 U0@0  F3@1 B1@1 U1@1  F2@2 B2@2 U2@2
         5  B1@1 U1@1       F4@2 B2@2 U2@2  F3@3 B3@3 U3@3
         6  B2@2 U2@2       B3@3 U3@3       F4@4 B4@4 U4@4
         7  B3@3 U3@3       B4@4 U4@4
         8  B4@4 U4@4
    """

    p: tuple[int, ...]
    m: tuple[int, ...]
    q: tuple[int, ...] | None = None

    def __post_init__(self):
        for name in ("p", "m", "q"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _as_delays(name, getattr(self, name)))
        if not self.p or len(self.p) != len(self.m):
            raise ValueError(
                f"m: got {len(self.m)} numbers for {len(self.p)} in p; one of each is wanted for "
                "every block"
            )
        for name, delays in (("p", self.p), ("m", self.m)):
            if delays[-1]:
                raise ValueError(
                    f"{name}: got {name}[{len(delays) - 1}] = {delays[-1]} for the last block, "
                    "which has no block above it; 0 is wanted"
                )
        for k, implied in enumerate(self.queues):
            if implied < 0:
                below = k - 1
                raise ValueError(
                    f"m: got m[{below}] = {self.m[below]} with m[{k}] = {self.m[k]} and "
                    f"p[{below}] = {self.p[below]}; the queue of error gradients of block {k} "
                    f"would delay by q[{k}] = m[{below}] - m[{k}] - p[{below}] = {implied}: "
                    f"m[{below}] of at least {self.m[k] + self.p[below]} is wanted"
                )
        if self.q is not None and self.q != self.queues:
            raise ValueError(
                f"q: got {self.q}; input and error gradient of a batch meet only with q[0] = 0 and "
                f"q[k + 1] = m[k] - m[k + 1] - p[k], which is {self.queues}"
            )

    @property
    def blocks(self) -> int:
        return len(self.p)

    @property
    def queues(self) -> tuple[int, ...]:
        """q_k: by how many ticks the error gradients that block k sends down are delayed."""
        pairs = zip(itertools.pairwise(self.m), self.p[:-1], strict=True)
        return (0, *(lower - upper - p for (lower, upper), p in pairs))

    def tasks(self, blocks: int, batches: int) -> list[Task]:
        return queued(self.p, self.m, batches)

    def keeps(self, blocks: int) -> tuple[bool, ...]:
        return tuple(m == 0 for m in self.m)

    def on_the_way(self, blocks: int) -> int:
        return self.m[0]

    def check_blocks(self, blocks: int) -> None:
        if blocks != len(self.p):
            raise ValueError(f"blocks: got {blocks}; {self} is for {len(self.p)}")

    def __str__(self) -> str:
        return f"DSP({','.join(map(str, self.p))};{','.join(map(str, self.m))})"


def _as_delays(name: str, value: Sequence[int]) -> tuple[int, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(f"{name}: got {described(value)}; a sequence such as (1, 1, 0) is wanted")
    return tuple(as_int(f"{name}[{k}]", each, least=0) for k, each in enumerate(value))
