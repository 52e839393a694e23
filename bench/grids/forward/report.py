"""What the grid says: passes, speedups, estimates beside errors, and what was fallen back on."""

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from matplotlib.figure import Figure

from bench.grids.forward.systems import Size
from bench.shared import figures, pages, tables, timing
from bench.shared.bench import Result
from parscan_bp.plots.base import COLOURS

Entry = dict[str, Any]


def text(result: Result) -> str:
    """A line for each point and method, and a summary of the methods."""
    header = ["point", "exponent", "method", "passes", "speedup", "estimate", "error", "fell back"]
    rows, refused = [], set()
    for point, name, entry in _methods(result):
        if "refused" in entry:
            refused.add(f"  {name}, {point['system']}: {entry['refused']}")
            continue
        trials = entry["trials"]
        passes = f"{statistics.median(trial['passes'] for trial in trials):g}"
        worst = [_worst(trials, key) for key in ("estimate", "error")]
        fell = f"{sum(not trial['certified'] for trial in trials)}/{len(trials)}"
        speed = tables.speedup(entry[timing.VALUE])
        finite = [value for value in point["exponents"] if value is not None]
        size, lambda_ = str(Size.of(point)), f"{statistics.median(finite):.2f}" if finite else "-"
        rows.append([size, lambda_, name, passes, speed, *worst, fell])
    parts = [tables.table(header, rows), "", _summary(result)]
    return "\n".join([*parts, *(["refused:", *sorted(refused)] if refused else [])])


def _methods(result: Result) -> Iterator[tuple[Entry, str, Entry]]:
    for point in result["points"]:
        for name, entry in point["methods"].items():
            yield point, name, entry


def _worst(trials: list[Entry], key: str) -> str:
    """Of the trajectories that converged, to which alone an estimate belongs."""
    values = [trial[key] for trial in trials if trial["converged"]]
    if None in values:
        return "refused"
    return f"{max(values):.0e}" if values else "-"


def understated(trial: Entry) -> bool:
    """Whether a certified trajectory is further off than was told, roundings included."""
    return trial["certified"] and trial["error"] > trial["estimate"] + trial["floor"]


def _summary(result: Result) -> str:
    """A line for each method: how often it fell back by exponent, and what it missed."""
    header = ["method", "trials", "fell back, exponent < -0.05", "others", "understated"]
    counts: dict[str, list[tuple[bool, Entry]]] = {}
    for point, name, entry in _methods(result):
        if "refused" not in entry:
            pairs = zip(point["exponents"], entry["trials"], strict=True)
            counts.setdefault(name, []).extend(
                (lam is not None and lam < -0.05, trial) for lam, trial in pairs
            )
    rows = []
    for name, trials in counts.items():
        calm, rest = ([t for c, t in trials if c is wanted] for wanted in (True, False))
        fell = [f"{sum(not t['certified'] for t in some)}/{len(some)}" for some in (calm, rest)]
        wrong = sum(understated(trial) for _, trial in trials)
        rows.append([name, str(len(trials)), *fell, str(wrong)])
    return tables.table(header, rows)


def page(results: Sequence[Result]) -> str:
    """A table in Markdown of several records: speedups, and passes or "back" where it fell back."""
    first, *_ = results
    names = list(dict.fromkeys(name for _, name, _ in _methods(first)))
    rows = []
    for point in first["points"]:
        size = Size.of(point)
        alike = [p for result in results for p in result["points"] if Size.of(p) == size]
        cells = [", ".join(_told(p["methods"].get(name, {})) for p in alike) for name in names]
        finite = [value for value in point["exponents"] if value is not None]
        exponent = f"{statistics.median(finite):.2f}" if finite else "-"
        rows.append([f"{size.system}, {size.strength:g}", exponent, *cells])
    return pages.markdown(["system, strength", "exponent", *names], rows)


def _told(entry: Entry) -> str:
    if timing.VALUE not in entry:
        return "-"
    trials = entry["trials"]
    passes = f"{statistics.median(trial['passes'] for trial in trials):g}"
    how = passes if all(trial["certified"] for trial in trials) else "back"
    return f"{entry[timing.VALUE]['speedup']:.2g} ({how})"


def draw(result: Result) -> dict[str, Figure]:
    """Passes and speedups over the exponent, and estimates over errors, refused ones as crosses."""
    figure = figures.new(14, 4.5)
    passes, speeds, errors = figure.subplots(1, 3)
    names = list(dict.fromkeys(name for _, name, _ in _methods(result)))
    for name, colour in zip(names, COLOURS, strict=False):
        met = [(p, e) for p, n, e in _methods(result) if n == name and "refused" not in e]
        trials = [
            (lam, t)
            for p, e in met
            for lam, t in zip(p["exponents"], e["trials"], strict=True)
            if lam is not None
        ]
        done = [(lam, t) for lam, t in trials if t["converged"]]
        how = {"color": colour, "s": 14, "alpha": 0.7}
        passes.scatter([lam for lam, _ in done], [t["passes"] for _, t in done], label=name, **how)
        speeds.scatter(
            [p["exponents"][0] for p, _ in met if p["exponents"][0] is not None],
            [e[timing.VALUE]["speedup"] for p, e in met if p["exponents"][0] is not None],
            **how,
        )
        told = [t for _, t in done if t["error"] and t["estimate"]]
        for certified, marker in ((True, "o"), (False, "x")):
            some = [t for t in told if t["certified"] is certified]
            pairs = [t["error"] for t in some], [t["estimate"] for t in some]
            errors.scatter(*pairs, marker=marker, **how)
    passes.set(xlabel="Lyapunov exponent", ylabel="passes", yscale="symlog")
    figure.legend(loc="outside lower center", ncols=len(names))
    speeds.set(xlabel="Lyapunov exponent", ylabel="speedup over lax.scan", yscale="log")
    speeds.axhline(1, color="grey", lw=0.8)
    errors.set(xlabel="true error", ylabel="estimate without floor", xscale="log", yscale="log")
    errors.plot([1e-9, 1], [1e-9, 1], color="grey", lw=0.8)
    return {"": figure}
