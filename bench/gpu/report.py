"""The tables of a result: times, ratios, and why something has no time."""

import collections
from typing import Any

from bench.gpu import contenders, summary
from bench.gpu.point import REFUSED, WRONG
from bench.shared import tables, timing

Result = dict[str, Any]

_QUANTITIES = {
    timing.FORWARD: "forward, residuals kept",
    timing.BACKWARD: "backward, the pullback alone",
    contenders.STEP: "training step, with Adam",
    contenders.STEPS: f"training step, {contenders.IN_ONE} in a program",
    contenders.SOLVE: "solve, the kernels alone",
}


def text(result: Result) -> str:
    """All of it."""
    device, peaks = result["runs"][-1]["device"]["kind"], result["peaks"]
    parts = [_times(result, quantity) for quantity in _QUANTITIES]
    parts += [
        f"{device}: {peaks['bytes_per_second'] / 1e12:.2f} TB/s copied, "
        f"{peaks['flops_per_second'] / 1e12:.1f} TFLOP/s in float32",
        _ratios(result),
        "\n".join(
            [
                *lines_of(result, REFUSED),
                *lines_of(result, WRONG),
                *failures(result),
                *(f"no time left: {n}" for n in result["not_run"] if n not in result["failed"]),
            ]
        ),
    ]
    return "\n\n".join(part for part in parts if part)


def lines_of(result: Result, status: str) -> list[str]:
    """Why programs have no times, wrong or refused, each reason once."""
    counts = collections.Counter(
        f"{name}, {program}: {reason}"
        for point in result["points"]
        for name, side in point["contenders"].items()
        if (side["status"] == WRONG) == (status == WRONG)
        for program, reason in side["reasons"].items()
    )
    return [f"{status} at {count} points: {line}" for line, count in counts.items()]


def failures(result: Result) -> list[str]:
    """The points that failed as a whole."""
    return [f"failed at {name}: {reason}" for name, reason in result["failed"].items()]


def _times(result: Result, quantity: str) -> str:
    """Medians ± half the interquartile range: a row for each point, a column for each contender."""
    names = [
        name
        for name in result["settings"]["names"]
        if any(_of(p, name, quantity) for p in result["points"])
    ]
    with_floor = quantity in (timing.BACKWARD, contenders.SOLVE)
    header = [_QUANTITIES[quantity], *names, *(["floor"] if with_floor else [])]
    rows = []
    for point in result["points"]:
        row = [str(summary.shape_of(point))]
        row += [_time(_of(point, name, quantity)) for name in names]
        row += [tables.seconds(point["floor"]["seconds"])] if with_floor else []
        rows.append(row)
    return tables.table(header, rows) if names else ""


def _of(point: Result, name: str, quantity: str) -> dict[str, Any] | None:
    """The times of a contender, which may not be timed there."""
    return point["contenders"].get(name, {"times": {}})["times"].get(quantity)


def _time(entry: dict[str, Any] | None) -> str:
    if entry is None:
        return "-"
    return f"{tables.seconds(entry['median'])} ± {tables.seconds(entry['iqr'] / 2)}"


def _ratios(result: Result) -> str:
    header = ["times faster", "minimum", "mean", "maximum", "best at", "points", "wanted", "met"]
    rows = []
    for entry in result["summary"]:
        count = len(entry["points"])
        numbers = (
            [f"{entry[name]:.2f}" for name in ("minimum", "geometric_mean", "maximum")]
            if count
            else ["-"] * 3
        )
        met = {True: "yes", False: "no", None: "-"}[entry.get("met")]
        of = f"{count} of {count + len(entry['missing'])}"
        wanted = entry.get("wanted", "-")
        rows.append([entry["ratio"], *numbers, entry.get("best", "-"), of, wanted, met])
    return tables.table(header, rows)
