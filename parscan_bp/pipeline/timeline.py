"""When each task of a tick table begins and ends: the event recursion of a pipeline."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from parscan_bp.arguments import as_int, check_finite, check_kind, described
from parscan_bp.pipeline.schedules import Schedule, Table
from parscan_bp.pipeline.schedules.task import Task


@dataclasses.dataclass(frozen=True)
class Costs:
    """What a batch takes at one block, in any unit of time.

    Args:
      forward: F_k, a number, or one for each block. To linearise a block again takes the same.
      backward: B_k, the same; a half of it each for the input's and the weights' gradient.
      transfer: c, of a batch from a block to its neighbour. It keeps neither of them busy.

    Raises:
      TypeError, ValueError: if one is no finite number of at least 0.

    Example:
      >>> import parscan_bp as pb
      >>> pb.pipeline.Costs(forward=(1.0, 2.0)).per_block(2)
      ((1.0, 2.0), (2.0, 2.0))
    """

    forward: float | Sequence[float] = 1.0
    backward: float | Sequence[float] = 2.0
    transfer: float = 0.0

    def __post_init__(self):
        for name in ("forward", "backward"):
            value = getattr(self, name)
            if isinstance(value, Sequence) and not isinstance(value, str):
                object.__setattr__(self, name, tuple(value))
                for k, each in enumerate(value):
                    check_finite(f"{name}[{k}]", each)
            else:
                check_finite(name, value)
        check_finite("transfer", self.transfer)

    def per_block(self, blocks: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """F_k and B_k of all blocks.

        Raises:
          ValueError: if they are of another number of blocks.
        """
        return _each("forward", self.forward, blocks), _each("backward", self.backward, blocks)


class Span(NamedTuple):
    """From when to when a task keeps its block busy.

    Attributes:
      task: the task.
      start, stop: in the unit of the costs.
      again: whether this is the linearisation that a backward pass begins with.
    """

    task: Task
    start: float
    stop: float
    again: bool = False


def timeline(
    table: Table, costs: Costs | None = None, *, slow: np.ndarray | None = None
) -> list[Span]:
    """When each task begins and ends, if every block begins as early as it can.

    A block does its tasks in their order, and so do all blocks of a device. With e_k(n) and g_k(n)
    the ends of the passes of tick n, d_k(n) the factor by which the block is slow in it, that is,
    for blocks between queues,

        e_k(n) = max(g_k(n - 1), e_{k-1}(n - p_{k-1}) + c) + F_k d_k(n)
        g_k(n) = max(e_k(n) + R_k d_k(n), g_{k+1}(n - q_{k+1}) + c) + B_k d_k(n)

    where R_k is the time to linearise again, which needs no error gradient. The blocks of a table
    in ``lockstep`` begin a tick when all are done with the one before. Updates take no time.

    Args:
      table: of a schedule.
      costs: of a batch; ``None`` is F = 1, B = 2, c = 0.
      slow: (ticks, blocks), factors; ``None`` is 1 throughout.

    Returns:
      A span for each task in the table's order, and one before each backward pass that linearises
      again.

    Raises:
      TypeError, ValueError: if an argument is none such; if ``slow`` is no array of that shape.

    Example:
      >>> import parscan_bp as pb
      >>> table = pb.pipeline.BackPropagation().table(blocks=2, batches=1)
      >>> [(str(s.task), s.start, s.stop) for s in pb.pipeline.timeline(table)][:3]
      [('F0@0', 0.0, 1.0), ('F0@0', 1.0, 2.0), ('B0@0', 2.0, 4.0)]
    """
    check_kind("table", table, Table, "a Table, such as schedule.table(3, 10),")
    costs = as_costs(costs)
    factors = slow_factors(table, slow)
    forward, backward = costs.per_block(table.blocks)
    devices = table.devices or table.blocks
    free = [0.0] * devices
    transfer = costs.transfer / table.parts
    ends: dict[tuple[str, int, int, int], float] = {}
    spans: list[Span] = []
    tick = 0

    def run(task: Task, seconds: float, ready: float, again: bool = False) -> None:
        at = task.block % devices
        start = max(free[at], ready)
        free[at] = start + seconds / table.parts * factors[task.tick][task.block]
        spans.append(Span(task, start, free[at], again))

    for task in table.tasks:
        if table.lockstep and task.tick > tick:
            free = [max(free)] * devices
        tick, k, which = task.tick, task.block, (task.batch, task.part)
        at = k % devices
        if task.kind == "update":
            spans.append(Span(task, free[at], free[at]))
        elif task.kind == "forward":
            below = ends[("up", k - 1, *which)] + transfer if k else 0.0
            run(task, forward[k], below)
            ends["up", k, *which] = free[at]
        elif task.kind == "weight_gradient":
            run(task, backward[k] / 2, 0.0)
        else:
            if not table.keeps[k]:
                run(task, forward[k], 0.0, again=True)
            last = k == table.blocks - 1
            above = 0.0 if last else ends[("down", k + 1, *which)] + transfer
            half = 2 if task.kind == "input_gradient" else 1
            run(task, backward[k] / half, above)
            ends["down", k, *which] = free[at]
    return spans


def bubble(table: Table, costs: Costs | None = None) -> float:
    """The share of the time, from the first task to the last, that devices are idle.

    Raises:
      TypeError, ValueError: as `timeline`; if nothing takes any time.

    Example:
      >>> import parscan_bp as pb
      >>> table = pb.pipeline.OneFOneB(microbatches=6).table(blocks=3, batches=1)
      >>> round(pb.pipeline.bubble(table), 6)  # (K - 1) / (M + K - 1)
      0.25
    """
    spans = timeline(table, costs)
    check_busy(costs)
    busy = sum(span.stop - span.start for span in spans)
    return 1 - busy / ((table.devices or table.blocks) * max(span.stop for span in spans))


def time_per_batch(
    schedule: Schedule,
    blocks: int,
    costs: Costs | None = None,
    *,
    batches: int = 100,
    slow: np.ndarray | None = None,
) -> float:
    """What a batch takes while the pipeline is full, in the unit of the costs.

    Args:
      schedule: the schedule.
      blocks: K.
      costs: as in `timeline`.
      batches: over which it is measured, beside those that fill and empty the pipeline.
      slow: (ticks, blocks) factors, at least as many ticks as the table has.

    Raises:
      TypeError, ValueError: if an argument is none such, or ``batches`` less than 2; as `timeline`.

    Example:
      >>> import parscan_bp as pb
      >>> pb.pipeline.time_per_batch(pb.pipeline.BackPropagation(), blocks=4)
      12.0
      >>> pb.pipeline.time_per_batch(pb.pipeline.DSP((1, 1, 1, 0), (6, 4, 2, 0)), blocks=4)
      4.0
    """
    check_kind("schedule", schedule, Schedule)
    batches = as_int("batches", batches, least=2)
    ahead = schedule.on_the_way(blocks)
    table = schedule.table(blocks, batches + 2 * ahead)
    done = [0.0] * table.batches
    for span in timeline(table, costs, slow=slow):
        if span.task.kind == "update":
            done[span.task.batch] = max(done[span.task.batch], span.stop)
    # While the pipeline empties, blocks have one of two passes to do.
    first, last = ahead, table.batches - 1 - ahead
    return (done[last] - done[first]) / (last - first)


def as_costs(costs: Costs | None) -> Costs:
    """The costs; `None` for those of which F = 1, B = 2, c = 0.

    Raises:
      TypeError: if they are something else.
    """
    if costs is None:
        return Costs()
    check_kind("costs", costs, Costs, "a Costs, or None,")
    return costs


def check_busy(costs: Costs | None) -> None:
    """Raises `ValueError` unless something takes time: shares and ratios are of a time."""
    given = as_costs(costs)
    if not (np.any(given.forward) or np.any(given.backward)):
        raise ValueError(f"costs: got {given}; some pass of some block that takes time is wanted")


def _each(name: str, value: float | Sequence[float], blocks: int) -> tuple[float, ...]:
    if not isinstance(value, Sequence):
        return (float(value),) * blocks
    if len(value) != blocks:
        raise ValueError(
            f"{name}: got {len(value)} numbers for {blocks} blocks; one for each is wanted"
        )
    return tuple(map(float, value))


def slow_factors(table: Table, slow: np.ndarray | None) -> Sequence[Sequence[float]]:
    """The factor of each tick and block.

    Raises:
      TypeError, ValueError: if ``slow`` is no array of that shape, of numbers of at least 0.
    """
    if slow is None:
        return [[1.0] * table.blocks] * table.ticks
    if not isinstance(slow, np.ndarray):
        raise TypeError(f"slow: got {described(slow)}; an array (ticks, blocks) is wanted")
    if slow.dtype.kind not in "biuf":
        raise TypeError(f"slow: got an array of {slow.dtype}; one of factors is wanted")
    if slow.ndim != 2 or slow.shape[0] < table.ticks or slow.shape[1] != table.blocks:
        raise ValueError(
            f"slow: got shape {slow.shape}; ({table.ticks}, {table.blocks}) is wanted, a factor "
            "for each tick and block"
        )
    if not (np.isfinite(slow).all() and (slow >= 0).all()):
        raise ValueError("slow: got factors that are negative or not finite; at least 0 is wanted")
    return slow.tolist()
