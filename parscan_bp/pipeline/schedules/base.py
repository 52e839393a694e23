"""What a schedule states about itself; the tick table is all that an executor needs."""

from __future__ import annotations

import abc
import dataclasses
from typing import ClassVar

from parscan_bp.arguments import as_int, set_ints
from parscan_bp.pipeline.schedules.table import Held, Staleness, Table
from parscan_bp.pipeline.schedules.task import Task


@dataclasses.dataclass(frozen=True)
class Schedule(abc.ABC):
    """In which order the blocks of a network work on which batches; a frozen configuration.

    A new schedule is one file with a subclass: `tasks`, and what of the rest differs.

    Example:
      >>> import parscan_bp as pb
      >>> table = pb.pipeline.OneFOneB(microbatches=2).table(blocks=2, batches=1)
      >>> print(table)
      OneFOneB(microbatches=2): 2 blocks, 1 batches, 2 parts each
      tick  block 0      block 1
         0  F0@0
         1  F0.1@0       F0@0
         2               B0@0
         3  B0@0         F0.1@0
         4               B0.1@0 U0@0
         5  B0.1@0 U0@0
    """

    lockstep: ClassVar[bool] = False
    """Whether the blocks wait for each other at the end of every tick."""

    together: ClassVar[bool] = False
    """Whether the updates of a batch are one step of the optimiser with all blocks' gradients."""

    @property
    def blocks(self) -> int | None:
        """How many blocks it is for; ``None`` if for any number."""
        return None

    @property
    def parts(self) -> int:
        """Micro-batches of a batch."""
        return 1

    @abc.abstractmethod
    def tasks(self, blocks: int, batches: int) -> list[Task]:
        """The tasks of K blocks and N batches, in an order in which they can run."""

    def keeps(self, blocks: int) -> tuple[bool, ...]:
        """For each block whether its linearisation is kept for the backward pass, or its input."""
        return (True,) * blocks

    def devices_for(self, blocks: int) -> int:
        """D, for how many devices the order is made: block k is on device k mod D."""
        return blocks

    def on_the_way(self, blocks: int) -> int:
        """Batches that enter before block 0 has its first gradient, beside the gradient's own."""
        del blocks
        return 0

    def check_blocks(self, blocks: int) -> None:
        """Raises `ValueError` if the schedule is none for so many blocks."""
        del blocks

    def table(self, blocks: int, batches: int) -> Table:
        """The tick table.

        Args:
          blocks: K, at least 1.
          batches: N. At the end the pipeline is emptied: every block is updated by every batch.

        Raises:
          TypeError, ValueError: if one is no positive integer.
          ValueError: if the schedule is for another number of blocks, or longer than the data.
        """
        blocks, batches = as_int("blocks", blocks), as_int("batches", batches)
        self.check_blocks(blocks)
        ahead = self.on_the_way(blocks)
        if batches <= ahead:
            raise ValueError(
                f"batches: got {batches}; {self} over {blocks} blocks has {ahead} batches on the "
                f"way before block 0 gets its first gradient: at least {ahead + 1} are wanted"
            )
        tasks, keeps = tuple(self.tasks(blocks, batches)), self.keeps(blocks)
        how = {"lockstep": self.lockstep, "together": self.together}
        devices = self.devices_for(blocks)
        return Table(str(self), blocks, batches, self.parts, keeps, tasks, devices=devices, **how)

    def staleness(self, blocks: int) -> tuple[Staleness, ...]:
        """For each block how many updates late its two passes are, once the pipeline is full."""
        return self._long_table(blocks).staleness()

    def held(self, blocks: int) -> tuple[Held, ...]:
        """For each block the most that it holds at once, once the pipeline is full."""
        return self._long_table(blocks).held()

    def _long_table(self, blocks: int) -> Table:
        return self.table(blocks, 2 * self.on_the_way(blocks) + 4)

    def __str__(self) -> str:
        fields = dataclasses.fields(self)
        given = [f"{f.name}={getattr(self, f.name)}" for f in fields if not _is_default(self, f)]
        return f"{type(self).__name__}({', '.join(given)})" if given else type(self).__name__


@dataclasses.dataclass(frozen=True)
class InMicrobatches(Schedule):
    """Base of the schedules that cut a batch into M parts."""

    microbatches: int

    def __post_init__(self):
        set_ints(self, microbatches=1)

    @property
    def parts(self) -> int:
        return self.microbatches


def _is_default(schedule: Schedule, field: dataclasses.Field) -> bool:
    return getattr(schedule, field.name) == field.default
