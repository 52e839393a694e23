"""Every schedule, and what is known of it in closed form."""

import dataclasses
from collections.abc import Callable

import parscan_bp as pb

PAPER = {
    "DSP(1,1,0;4,2,0)": pb.pipeline.DSP((1, 1, 0), (4, 2, 0)),
    "DSP(2,2,0;6,3,0)": pb.pipeline.DSP((2, 2, 0), (6, 3, 0)),
    "DSP(3,3,0;10,5,0)": pb.pipeline.DSP((3, 3, 0), (10, 5, 0)),
    "DSP(1,1,1,0;6,4,2,0)": pb.pipeline.DSP((1, 1, 1, 0), (6, 4, 2, 0)),
    "DSP(2,2,2,0;9,6,3,0)": pb.pipeline.DSP((2, 2, 2, 0), (9, 6, 3, 0)),
    "DSP(3,3,3,0;15,10,5,0)": pb.pipeline.DSP((3, 3, 3, 0), (15, 10, 5, 0)),
}
"""The configurations of DSP's Table 1."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A schedule with so many blocks.

    Attributes:
      forward, backward: (block, batch) -> how many updates the weights of each pass have had.
    """

    schedule: pb.pipeline.Schedule
    blocks: int
    forward: Callable[[int, int], int]
    backward: Callable[[int, int], int]


def _fresh(block, batch):
    return batch


def _late(*delays):
    return lambda block, batch: max(0, batch - delays[block])


CASES = {
    name: Case(schedule, len(schedule.m), _late(*schedule.m), _fresh)
    for name, schedule in PAPER.items()
} | {
    "DSP(0,0,0;0,0,0)": Case(pb.pipeline.DSP((0, 0, 0), (0, 0, 0)), 3, _fresh, _fresh),
    "DSP(2,0,1,0;7,4,3,0)": Case(
        pb.pipeline.DSP((2, 0, 1, 0), (7, 4, 3, 0)), 4, _late(7, 4, 3, 0), _fresh
    ),
    "BackPropagation": Case(pb.pipeline.BackPropagation(), 3, _fresh, _fresh),
    "FeaturesReplay": Case(pb.pipeline.FeaturesReplay(), 3, _late(2, 1, 0), _fresh),
    "DelayedGradients": Case(pb.pipeline.DelayedGradients(), 3, _late(2, 1, 0), _late(2, 1, 0)),
    "GPipe": Case(pb.pipeline.GPipe(4), 3, _fresh, _fresh),
    "GPipe, kept": Case(pb.pipeline.GPipe(4, recompute=False), 3, _fresh, _fresh),
    "OneFOneB": Case(pb.pipeline.OneFOneB(4), 3, _fresh, _fresh),
    "InterleavedOneFOneB": Case(pb.pipeline.InterleavedOneFOneB(4, devices=2), 4, _fresh, _fresh),
    "PipeDream": Case(pb.pipeline.PipeDream(), 3, _late(2, 1, 0), _late(2, 1, 0)),
    "PipeDream2BW": Case(pb.pipeline.PipeDream2BW(4), 3, _late(1, 1, 1), _late(1, 1, 1)),
    "ZeroBubble": Case(pb.pipeline.ZeroBubble(4), 3, _fresh, _fresh),
    "ZeroBubble, H2": Case(pb.pipeline.ZeroBubble(4, lookahead=2), 3, _fresh, _fresh),
}
SYNCHRONOUS = ("GPipe", "OneFOneB", "ZeroBubble")
