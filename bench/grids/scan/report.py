"""What a grid says: one row a point and solver, verdicts, and which points to measure again.

A single bad interval may be a busy machine. So a point fails only when a second measurement of
it, in a file of its own, fails as well.
"""

import collections
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from bench.grids import workloads
from bench.shared import candidates, tables, timing
from bench.shared.bench import Result

# The whole interval of the speedup below this is a failure.
SLOWEST = {timing.VALUE_AND_GRAD: 0.95, "jvp": 0.9, "hvp": 0.9}
MOST_MEMORY, MOST_MEMORY_OF_CHECKPOINTED = 1.1, 2.0
# Below this, temporary bytes are the bookkeeping of a small program and no verdict is made.
SMALLEST_JUDGED_BYTES = 1_000_000


@dataclasses.dataclass(frozen=True, order=True)
class Lane:
    """One solver at one point in one mode: what a verdict is about."""

    size: workloads.Size
    solver: str
    mode: str

    def __str__(self) -> str:
        return f"{self.size}, {self.solver}, {self.mode}"


def lanes(result: Result) -> Iterator[tuple[Lane, dict[str, Any]]]:
    """Every comparison of a file."""
    for point in result["points"]:
        for solver, entry in point.get("solvers", {}).items():
            for mode, comparison in entry["modes"].items():
                yield Lane(workloads.Size.of(point), solver, mode), comparison


def too_slow(result: Result) -> dict[Lane, dict[str, Any]]:
    """The comparisons of a file whose interval lies below what the mode allows."""
    return {lane: entry for lane, entry in lanes(result) if is_too_slow(lane, entry)}


def is_too_slow(lane: Lane, comparison: dict[str, Any]) -> bool:
    """Whether the whole interval of the speedup lies below what the mode allows."""
    return _is_judged(lane) and comparison["high"] < SLOWEST[lane.mode]


def _is_judged(lane: Lane) -> bool:
    """Whether there is a limit for the mode, and the program is ours."""
    return lane.mode in SLOWEST and lane.solver != candidates.CHECKPOINTED


def too_large(result: Result) -> list[str]:
    """Points where value_and_grad needs more scratch memory than it may."""
    lines = []
    for point, solver, bytes_ in _memory(result):
        ours, plain, lean = bytes_
        if ours < SMALLEST_JUDGED_BYTES:
            continue
        over = []
        if ours > MOST_MEMORY * plain:
            over.append(f"{ours / plain:.2f}x jax.lax.scan ({tables.size(plain)})")
        if ours > MOST_MEMORY_OF_CHECKPOINTED * lean:
            over.append(f"{ours / lean:.2f}x checkpointed ({tables.size(lean)})")
        if over:
            lines.append(
                f"{workloads.Size.of(point)}, {solver}: {tables.size(ours)} is {', '.join(over)}"
            )
    return lines


def text(result: Result, confirmation: Result | None = None) -> str:
    """The overview and the verdicts."""
    return f"{overview(result)}\n{verdicts(result, confirmation)}"


def overview(result: Result) -> str:
    """A line for each point and solver: speedups with intervals, A/A, memory, compile time."""
    modes = list(dict.fromkeys(lane.mode for lane, _ in lanes(result)))
    header = ["point", "solver", *modes, "A/A", "temp ours/scan/ckpt", "compile ours/scan"]
    rows = []
    for point in result["points"]:
        for solver, entry in point.get("solvers", {}).items():
            rows.append(
                [str(workloads.Size.of(point)), _named(solver, point), *_cells(point, entry, modes)]
            )
        if "reason" in point:
            blanks = [""] * (len(header) - 2)
            rows.append(
                [str(workloads.Size.of(point)), f"{point['status']}: {point['reason']}", *blanks]
            )
    return tables.table(header, rows)


def verdicts(result: Result, confirmation: Result | None = None) -> str:
    """What fails, in words. With a second file, only what fails in both."""
    slow = too_slow(result)
    counted = sum(_is_judged(lane) for lane, _ in lanes(result))
    again = {} if confirmation is None else too_slow(confirmation)
    measured = set() if confirmation is None else {lane for lane, _ in lanes(confirmation)}
    said = tables.resolved
    failed = sorted(lane for lane in slow if lane in again)
    open_ = sorted(lane for lane in slow if lane not in measured)
    lines = [
        f"{counted} comparisons judged: the interval of the speedup must reach "
        + ", ".join(f"{limit} ({mode})" for mode, limit in SLOWEST.items()),
        f"slower, twice: {len(failed)}",
        *(f"  {lane}: {said(slow[lane])} and {said(again[lane])}" for lane in failed),
        f"slower, once, not measured again: {len(open_)}",
        *(f"  {lane}: {said(slow[lane])}" for lane in open_),
        f"slower, once, cleared by the second measurement: {len(slow) - len(failed) - len(open_)}",
    ]
    large = too_large(result)
    judged = sum(ours >= SMALLEST_JUDGED_BYTES for _, _, (ours, _, _) in _memory(result))
    lines += [
        f"{judged} of {len(list(_memory(result)))} memory figures judged "
        f"(from {tables.size(SMALLEST_JUDGED_BYTES)} on); too large: {len(large)}",
        *(f"  {line}" for line in large),
    ]
    return "\n".join([*lines, *_refusals(result)])


def _refusals(result: Result) -> list[str]:
    """Why programs were not run, each reason once."""
    counts = collections.Counter(
        f"{side}: {reason}"
        for point in result["points"]
        for side, entry in {
            **point.get("solvers", {}),
            "baseline": point.get("baseline", {}),
        }.items()
        for reason in entry.get("refused", {}).values()
    )
    return [f"not run, {count} programs of {reason}" for reason, count in counts.items()]


def _memory(result: Result) -> Iterator[tuple[Result, str, tuple[int, int, int]]]:
    for point in result["points"]:
        for solver, entry in point.get("solvers", {}).items():
            ours = entry["programs"].get(timing.VALUE_AND_GRAD)
            if ours is not None and solver != candidates.CHECKPOINTED:
                plain = point["baseline"]["programs"][timing.VALUE_AND_GRAD]
                lean = point["checkpointed"]
                yield point, solver, tuple(p["temp_bytes"] for p in (ours, plain, lean))


def _cells(point: Result, entry: dict[str, Any], modes: Sequence[str]) -> list[str]:
    measured = entry["modes"]
    speedups = [tables.resolved(measured[mode]) if mode in measured else "-" for mode in modes]
    laps = [measured[mode]["again"] for mode in measured]
    worst = max(laps, key=lambda lap: abs(lap - 1), default=None)
    ours, plain = entry["programs"], point["baseline"]["programs"]
    shared = timing.VALUE_AND_GRAD if timing.VALUE_AND_GRAD in ours else next(iter(ours), None)
    if shared is None:
        return [*speedups, "-", "refused", "-"]
    sides = (ours[shared], plain[shared], point["checkpointed"])
    return [
        *speedups,
        "-" if worst is None else f"{worst:.2f}",
        " / ".join(tables.size(side["temp_bytes"]) for side in sides),
        " / ".join(tables.seconds(side["compile_seconds"]) for side in sides[:2]),
    ]


def _named(solver: str, point: Result) -> str:
    return f"auto = {point['choice']}" if solver == "auto" else solver
