"""The tables of the pipeline bench."""

from collections.abc import Sequence

import numpy as np

from bench.paper.pipeline import accuracy, remedies, speed
from bench.shared import pages, tables
from bench.shared.bench import Result

DIVERGED = "diverged"


def text(result: Result) -> str:
    """A table for each part that was measured."""
    points = result["points"]
    parts = [
        _speed(points),
        _stragglers(points),
        _differences(points),
        *_accuracies(points),
        _remedies(points),
    ]
    return "\n\n".join(filter(None, parts))


def of_part(points: Result, part: str) -> list[Result]:
    """The entries of a part, in the order in which they were measured."""
    return [entry for entry in points.values() if entry["part"] == part]


def _speed(points: Result) -> str:
    found = of_part(points, "speed")
    if not found:
        return ""
    speedups = found[0]["speedups"]
    names = list(next(iter(speedups.values())))
    rows = [[setting, *(f"{own[name]:.2f}" for name in names)] for setting, own in speedups.items()]
    paper = [
        [f"paper: {what}, K={k}", *(f"{own[name]:.1f}" if name in own else "" for name in names)]
        for what, (k, own) in speed.TABLE_3.items()
    ]
    return "speedup over BP of K equal blocks, modelled; DSP's Table 3\n" + tables.table(
        ["", *names], [*rows, *paper]
    )


def _stragglers(points: Result) -> str:
    found = of_part(points, "stragglers")
    if not found:
        return ""
    rows = []
    for name, percent in found[0]["percent"].items():
        paper = speed.TABLE_2.get(name, [None] * len(percent))
        both = zip(percent, paper, strict=True)
        rows.append([name, *(f"{a:.1f}" + (f" ({b:.1f})" if b else "") for a, b in both)])
    head = ["slow down %, K=3", *(f"{s:.0%}" for s in found[0]["slow_downs"])]
    return (
        "blocks slow with probability 1/3 in a tick, modelled (DSP's Table 2)\n"
        + tables.table(head, rows)
        + "\nno model in which computing takes at most 1 + s times as long gives more than s: the\n"
        "paper's 97 % and 359 % of FR have another cause"
    )


def _differences(points: Result) -> str:
    rows = []
    for entry in of_part(points, "difference"):
        samples = entry["samples"]
        for k in range(len(samples[0]["difference"])):
            relative = [s["difference"][k] / s["gradient"][k] for s in samples if s["gradient"][k]]
            least = [s["difference"][k] / s["way"][k] for s in samples if s["way"][k]]
            third = max(1, len(relative) // 3)
            rows.append(
                [
                    f"{entry['schedule']} block {k}",
                    *(f"{np.median(part):.3f}" for part in (relative[:third], relative[-third:])),
                    f"{max(least):.3g}" if least else "-",
                ]
            )
    if not rows:
        return ""
    head = ["|G_DSP - G_BP| / |G_BP|", "first third", "last third", "Lemma 1's constant at least"]
    return tables.table(head, rows)


def _accuracies(points: Result) -> list[str]:
    found = of_part(points, "accuracy")
    made = []
    for task, rate in dict.fromkeys((entry["task"], entry["rate"]) for entry in found):
        own = [entry for entry in found if (entry["task"], entry["rate"]) == (task, rate)]
        rows = [_accuracy_row(entry) for entry in own]
        head = [
            f"{task}, rate {rate:g}",
            "best accuracy",
            "spread",
            "last loss",
            "time per batch",
        ]
        made.append(tables.table(head, rows))
    return made


def learned(runs: Sequence[Result]) -> tuple[str, str, str]:
    """The best test accuracy, how far the seeds are apart, and the last training loss."""
    best, losses = accuracy.best(runs), [run["losses"][-1] for run in runs]
    loss = DIVERGED if None in losses else f"{np.mean(losses):.3f}"
    return f"{np.mean(best):.1%}", f"{max(best) - min(best):.1%}", loss


def _accuracy_row(entry: Result) -> list[str]:
    return [entry["schedule"], *learned(entry["runs"]), f"{entry['time_per_batch']:.2f} F"]


def _remedies(points: Result) -> str:
    found = of_part(points, "remedies")
    return tables.table(*_remedy_rows(found)) if found else ""


def _remedy_rows(found: list[Result]) -> tuple[list[str], list[list[str]]]:
    """The header and a row for each optimiser and delay."""
    rows = []
    for entry in found:
        runs, cells = entry["runs"], []
        for side in ("no delay", *remedies.REMEDIES):
            mean = remedies.mean_loss(runs[side])
            share = None if side in ("no delay", "none") else remedies.closed(runs, side)
            shown = DIVERGED if mean is None else f"{mean:.3f}"
            cells.append(shown + (f" {share:.0%}" if share is not None else ""))
        rows.append([f"{entry['optimiser']}, d = {entry['delay']}", *cells])
    return ["training loss, gap closed", "no delay", *remedies.REMEDIES], rows


def accuracy_page(points: Result) -> str:
    """For a page: every schedule by task and rate: accuracy (spread of seeds), last loss."""
    found = of_part(points, "accuracy")
    settings = sorted({(entry["task"], entry["rate"]) for entry in found})
    times, cells = {}, {}
    for entry in found:
        name, best, spread, loss, times[name] = _accuracy_row(entry)
        cells[name, entry["task"], entry["rate"]] = f"{best} ({spread}), {loss}"
    head = ["schedule", "a batch takes", *(f"{task}, rate {rate:g}" for task, rate in settings)]
    rows = [[n, time, *(cells.get((n, *one), "") for one in settings)] for n, time in times.items()]
    return pages.markdown(head, rows)


def remedies_page(points: Result) -> str:
    """For a page: the last training loss by remedy, and the share of the gap that it closes."""
    return pages.markdown(*_remedy_rows(of_part(points, "remedies")))
