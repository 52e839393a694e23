"""What `Pipeline.report` says."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from parscan_bp.pipeline.schedules import Held, Schedule, Staleness
from parscan_bp.pipeline.timeline import Costs, Span, time_per_batch


@dataclasses.dataclass(frozen=True)
class BlockReport:
    """One block of a pipeline.

    Attributes:
      layers: how many.
      device: where.
      seconds: what its layers took when they were measured for the split; ``None`` if not.
      busy: share of the time that it was busy, lately.
      staleness: of its passes, in updates.
      held: the most that it holds at once, by the schedule.
      bytes: that it holds now: weights, states, and what waits for a backward pass; each array
        once.
    """

    layers: int
    device: str
    seconds: float | None
    busy: float
    staleness: Staleness
    held: Held
    bytes: int


@dataclasses.dataclass(frozen=True)
class PipelineReport:
    """How a pipeline does.

    Attributes:
      schedule: its name.
      batches: that have entered.
      seconds: that a batch took, lately.
      bubble: the share of time that blocks were idle, lately.
      modelled: the same by the event recursion, if passes take the time that they took lately, and
        there are the devices that the schedule is made for.
      blocks: of each.
    """

    schedule: str
    batches: int
    seconds: float
    bubble: float
    modelled: float
    blocks: tuple[BlockReport, ...]

    def __str__(self) -> str:
        head = (
            f"{self.schedule}: {self.batches} batches, {1e3 * self.seconds:.1f} ms each, "
            f"bubble {self.bubble:.0%} (model {self.modelled:.0%})"
        )
        rows = [["block", "layers", "device", "busy", "late (forward, backward)", "inputs kept"]]
        rows[0] += ["linearisations kept", "versions", "bytes"]
        for k, own in enumerate(self.blocks):
            late = f"{own.staleness.forward}, {own.staleness.backward}"
            row = [k, own.layers, own.device, f"{own.busy:.0%}", late, own.held.inputs]
            rows.append([*map(str, row), str(own.held.linearisations), str(own.held.weights)])
            rows[-1].append(f"{own.bytes:,}")
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(entry.ljust(width) for entry, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        return "\n".join([head, *lines])


def busy_seconds(spans: Sequence[Span], blocks: int) -> tuple[list[float], float]:
    """For each block how long it was busy, and the time from the first task to the end."""
    busy = [0.0] * blocks
    for span in spans:
        busy[span.task.block] += span.stop - span.start
    return busy, max(s.stop for s in spans) - min(s.start for s in spans)


def modelled_bubble(schedule: Schedule, blocks: int, spans: Sequence[Span]) -> float:
    """The bubble of a full pipeline by the event recursion, of the mean times of the passes."""
    forward = _mean_seconds(spans, blocks, "forward")
    kinds = ("backward", "input_gradient", "weight_gradient")
    down = [sum(own) for own in zip(*(_mean_seconds(spans, blocks, k) for k in kinds), strict=True)]
    # A backward pass that linearises again is measured with what the model counts apart.
    again = [0.0 if k else f for k, f in zip(schedule.keeps(blocks), forward, strict=True)]
    backward = [max(0.0, own - more) for own, more in zip(down, again, strict=True)]
    whole = lambda parts: tuple(schedule.parts * own for own in parts)  # noqa: E731
    costs = Costs(whole(forward), whole(backward))
    a_batch = time_per_batch(schedule, blocks, costs, batches=8)
    work = schedule.parts * sum(map(sum, (forward, backward, again)))
    return 1 - work / (blocks * a_batch) if a_batch else 0.0


def _mean_seconds(spans: Sequence[Span], blocks: int, kind: str) -> list[float]:
    """Of a task of one kind at each block; 0 where there was none."""
    own: list[list[float]] = [[] for _ in range(blocks)]
    for span in spans:
        if span.task.kind == kind:
            own[span.task.block].append(span.stop - span.start)
    return [sum(each) / len(each) if each else 0.0 for each in own]
