"""Interleaved 1F1B: several blocks a device, so that the pipeline fills in a part of the time."""

from __future__ import annotations

import collections
import dataclasses
from typing import final

from parscan_bp.arguments import set_ints
from parscan_bp.pipeline.schedules.base import InMicrobatches
from parscan_bp.pipeline.schedules.orders import NextTask, clocked
from parscan_bp.pipeline.schedules.task import Task


@final
@dataclasses.dataclass(frozen=True)
class InterleavedOneFOneB(InMicrobatches):
    """`OneFOneB` over D devices with V = K / D blocks each: block k is on device k mod D.

    A device does D micro-batches with its first block, then the same with its next one, and so on.
    Its backward passes begin as early as they can, the last block first. No pass is stale. Of K
    equal blocks the share (D - 1) / (V M + D - 1) of the time is idle, against
    (D - 1) / (M + D - 1) if each device has one block of V times the work; a device stores more
    linearisations for that, and sends V times as much.

    Args:
      microbatches: M, of a batch; a multiple of D.
      devices: D.

    Raises:
      TypeError, ValueError: if one is no positive integer, or M is no multiple of D; by `table`, if
        K is none.

    Source: Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using
    Megatron-LM (SC 2021), section 2.2.

    Example:
      >>> import parscan_bp as pb
      >>> schedule = pb.pipeline.InterleavedOneFOneB(microbatches=4, devices=2)
      >>> costs = pb.pipeline.Costs(forward=1, backward=1)
      >>> round(pb.pipeline.bubble(schedule.table(blocks=4, batches=1), costs), 6)
      0.111111
    """

    devices: int

    def __post_init__(self):
        super().__post_init__()
        set_ints(self, devices=1)
        if self.microbatches % self.devices:
            raise ValueError(
                f"microbatches: got {self.microbatches} for {self.devices} devices; a multiple of "
                f"{self.devices} is wanted"
            )

    def tasks(self, blocks: int, batches: int) -> list[Task]:
        rounds = blocks // self.devices
        orders = [
            [step for n in range(batches) for step in self._order(d, rounds, n)]
            for d in range(self.devices)
        ]
        return clocked(orders, lambda block, batch: batch, rounds)

    def devices_for(self, blocks: int) -> int:
        return self.devices

    def check_blocks(self, blocks: int) -> None:
        if blocks % self.devices:
            raise ValueError(
                f"blocks: got {blocks} for {self.devices} devices; as many on each are wanted, a "
                f"multiple of {self.devices}"
            )

    def _order(self, device: int, rounds: int, batch: int) -> list[NextTask]:
        """What a device does with one batch."""
        passes, group = rounds * self.microbatches, self.devices
        # Blocks change after as many micro-batches as there are devices: then the first of them is
        # back from the last device.
        first = [
            (at // group % rounds, at // (group * rounds) * group + at % group)
            for at in range(passes)
        ]
        ahead = min(2 * (self.devices - 1 - device) + (rounds - 1) * group, passes)
        up = [NextTask("forward", batch, part, own) for own, part in first]
        down = [NextTask("backward", batch, part, rounds - 1 - own) for own, part in first]
        steps, left = up[:ahead], collections.Counter(dict.fromkeys(range(rounds), self.parts))
        for at, step in enumerate(down):
            steps += [*up[ahead + at : ahead + at + 1], step]
            left[step.round] -= 1
            if not left[step.round]:
                steps.append(NextTask("update", batch, round=step.round))
        return steps
