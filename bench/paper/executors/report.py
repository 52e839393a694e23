"""The tables of the bench of executors."""

from bench.paper.pipeline import speed
from bench.shared import tables
from bench.shared.bench import Result


def text(result: Result) -> str:
    """A table for each part that was measured."""
    points, settings = result["points"], result["settings"]
    parts = [_times(points), _stragglers(points), _working(points, settings), _resnet(points)]
    return "\n\n".join(filter(None, parts))


def _of(points: Result, part: str) -> list[Result]:
    return [entry for entry in points.values() if entry["part"] == part]


def _times(points: Result) -> str:
    found = _of(points, "sleeping")
    rows = []
    for entry in found:
        run = entry["runs"][0]
        ratio = run["seconds"] / run["modelled"]
        rows.append([entry["schedule"], *map(tables.seconds, (run["seconds"], run["modelled"]))])
        rows[-1].append(f"{ratio:.2f}")
    head = ["sleeping blocks, K=3", "a batch", "model", "ratio"]
    return tables.table(head, rows) if rows else ""


def _stragglers(points: Result) -> str:
    rows = []
    slow_downs: list[float] = []
    for entry in _of(points, "sleeping"):
        plain, *slowed = entry["runs"]
        slow_downs = [run["slow_down"] for run in slowed]
        paper = dict(zip(speed.SLOW_DOWNS, speed.TABLE_2.get(entry["schedule"], ()), strict=False))
        row = [entry["schedule"]]
        for run in slowed:
            ours, model = (100 * (run[k] / plain[k] - 1) for k in ("seconds", "modelled"))
            theirs = paper.get(run["slow_down"])
            row.append(f"{ours:.1f} | {model:.1f}" + (f" ({theirs:.1f})" if theirs else ""))
        rows.append(row)
    if not rows:
        return ""
    head = ["slow down %: measured | model (paper)", *(f"{s:.0%}" for s in slow_downs)]
    return "blocks slow with probability 1/3 in a tick, by real sleeps\n" + tables.table(head, rows)


def _working(points: Result, settings: Result) -> str:
    found = _of(points, "working")
    if not found:
        return ""
    rows = []
    for entry in found:
        both = entry["seconds"], entry["modelled"]
        rows.append([entry["schedule"], *map(tables.seconds, both), f"{both[0] / both[1]:.2f}"])
    head = ["working blocks, K=2", "a batch", "model", "ratio"]
    cores, devices = settings["cores"], settings["jax_devices"]
    return (
        tables.table(head, rows)
        + f"\n{cores} cores and {devices} JAX device(s), shared by both blocks and by XLA's own\n"
        "threads within a pass; the model has a device for each block"
    )


def _resnet(points: Result) -> str:
    parts = []
    for entry in _of(points, "resnet"):
        for run in entry["runs"]:
            losses = ", ".join(f"{loss:.3f}" for loss in run["losses"])
            parts.append(
                f"nnx ResNet by {run['schedule']}: loss by epoch {losses}; test accuracy "
                f"{run['accuracy']:.3f}; {run['seconds']:.1f} s\n{run['report']}"
            )
    return "\n\n".join(parts)
