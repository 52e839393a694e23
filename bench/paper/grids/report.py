"""What the bench `grids` prints and draws: each figure, the paper's numbers beside ours."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from bench.paper.grids import simulate
from bench.paper.grids.machine import CORI_KNL, EQUATIONS
from bench.paper.grids.networks import IMAGE, alexnet
from bench.paper.grids.simulate import Bar
from bench.paper.grids.weights import weight_layers
from bench.shared import figures, tables
from parscan_bp.layers import Conv
from parscan_bp.parallel import best_grid

Result = dict[str, Any]
_HATCHED = "weights' all-reduce"
_NONE = "-"


def curve(result: Result) -> simulate.Curve:
    """Figure 4, of what was measured."""
    points = result["compute"]
    return simulate.Curve({p["batch"]: p["iteration"]["baseline"]["median"] for p in points})


def text(result: Result) -> str:
    """A table for each figure, and the claims of the text."""
    bars = simulate.bars(curve(result))
    parts = [_figure4(result)]
    for figure, own in simulate.grouped(bars, lambda bar: bar.figure).items():
        parts.append(_figure(figure, own))
    return "\n\n".join([*parts, _chosen(), _claims(bars)])


def _figure4(result: Result) -> str:
    header = ["figure 4: batch", "iteration", "an entry", "divided by a 1 x 1 grid"]
    lines = []
    for point in sorted(result["compute"], key=lambda point: point["batch"]):
        seconds = point["iteration"]["baseline"]["median"]
        ratio = tables.speedup(point["iteration"])
        each = tables.seconds(seconds / point["batch"])
        lines.append([str(point["batch"]), tables.seconds(seconds), each, ratio])
    note = (
        "value and gradient of AlexNet on one process here (the paper: one KNL, fastest at a batch "
        "of 256); a larger batch is taken to cost as much an entry as the largest measured"
    )
    return f"{tables.table(header, lines)}\n{note}"


def _figure(figure: str, bars: Sequence[Bar]) -> str:
    header = [f"{figure}: P, B", "P_r x P_c", "eq. 8, 9", "weights", "our program"]
    header += ["compute", "total", "eq.'s speedup", "our program's", "of the total", "paper's"]
    lines = []
    for (processes, batch), own in simulate.grouped(bars, lambda b: (b.processes, b.batch)).items():
        lines += [_line(bar, own[0], f"{processes}, {batch}") for bar in own]
    return tables.table(header, lines)


def _line(bar: Bar, base: Bar, name: str) -> list[str]:
    paper = ", ".join(f"{kind} {value}" for kind, value in bar.paper.items())
    ours = _NONE if bar.program is None else tables.seconds(bar.program)
    times = [tables.seconds(value) for value in (bar.equation, bar.weights)]
    rest = [tables.seconds(value) for value in (bar.compute, bar.total)]
    speedups = [_ratio(base.equation, bar.equation), _ratio(base.program, bar.program)]
    return [name, bar.grid, *times, ours, *rest, *speedups, _ratio(base.total, bar.total), paper]


def _ratio(base: float | None, own: float | None) -> str:
    return _NONE if base is None or own is None else f"{base / own:.2f}"


def _chosen() -> str:
    header = ["best_grid: P, B", "convolutions", "linear maps", "sends for", "1 x P", "held"]
    lines = []
    for processes in simulate.SCALING:
        plan = best_grid(alexnet(), IMAGE, processes, simulate.BATCH, link=CORI_KNL)
        head = simulate.head(alexnet())
        grids = [dict.fromkeys(map(str, part)) for part in (plan.grids[:head], plan.grids[head:])]
        batch_only = simulate.program(simulate.SAME, simulate.BATCH, 1, processes)
        assert batch_only is not None  # a 1 x P grid takes any layer
        lines.append(
            [
                f"{processes}, {simulate.BATCH}",
                *(", then ".join(names) for names in grids),
                tables.seconds(plan.seconds),
                tables.seconds(batch_only),
                tables.size(plan.memory),
            ]
        )
    return tables.table(header, lines)


def _claims(bars: Sequence[Bar]) -> str:
    """The paper's claims, each with what its equations give."""
    by = simulate.grouped(bars, lambda bar: (bar.figure, bar.processes))
    best = {key: min(own, key=lambda bar: bar.equation).grid for key, own in by.items()}
    speedup = {key: own[0].equation / min(bar.equation for bar in own) for key, own in by.items()}
    layer = weight_layers([Conv(384, (3, 3))], (13, 13, 384))[0]
    limit = EQUATIONS.batch_limit(layer)
    pure_domain = simulate.domain_to_batch()
    stated = [bar for bar in bars if "communication" in bar.paper]
    explained = [
        simulate.compute_that_explains(by[bar.figure, bar.processes][0].equation, bar.paper)
        for bar in stated
    ]
    told = {p: best["figure 6", p] for p in simulate.SCALING}
    mixed = ", ".join(f"P={p} {grid}" for p, grid in told.items())
    gains = ", ".join(
        f"P={p} {speedup['figure 6', p]:.2f} and {speedup['figure 7', p]:.2f}"
        for p in simulate.SCALING
    )
    seconds = ", ".join(tables.seconds(c) for c in explained)
    return "\n".join(
        [
            "The paper's claims, and what its equations give:",
            f"  pure batch best at P=8, a mixed grid from P=128 on: figure 6's best are {mixed}",
            f"  figure 7 gains more than figure 6: {gains}",
            f"  domain sends more than batch where B >= P: eq. 7 over eq. 4 is {pure_domain}",
            f"  model below B=12 of 3x3 on 13x13x384: eq. 5 says {limit:.1f}",
            f"  its communication and total speedups agree for compute of {seconds}",
            "  its communication speedups at 16 x 32 do not follow from eq. 8, whose best grid is",
            "  another one (tables above); no default is tuned to hit them",
        ]
    )


def draw(result: Result) -> Mapping[str, Figure]:
    """Figure 4, and the bars of figures 6 to 10."""
    bars = simulate.bars(curve(result))
    groups = simulate.grouped(bars, lambda bar: bar.figure)
    drawn = {"": _drawn4(result)}
    for figure in ("figure 6", "figure 7", "figure 8", "figure 9"):
        drawn[f"_{figure.replace(' ', '')}"] = _panels(figure, groups[figure])
    drawn["_figure10"] = _panel_of("figure 10", groups["figure 10"])
    return drawn


def _drawn4(result: Result) -> Figure:
    figure = figures.new(5.0, 3.4)
    axes = figure.subplots()
    measured = ((p["batch"], p["iteration"]["baseline"]) for p in result["compute"])
    points = sorted((batch, own["median"], own["iqr"]) for batch, own in measured)
    batches, seconds, spread = np.array(points).T
    half = spread / batches / 2
    axes.errorbar(batches, seconds / batches, half, fmt="o-", capsize=3)
    axes.set_xscale("log", base=2)
    axes.set_xticks(batches, [f"{batch:.0f}" for batch in batches])
    axes.set_ylim(bottom=0)
    axes.set(xlabel="images in a batch of one process", ylabel="seconds an image")
    axes.set_title(
        "Figure 4: an iteration of AlexNet, measured here\n"
        "(medians, middle half of runs; paper: least at 256)",
        size=9,
    )
    return figure


def _panels(name: str, bars: Sequence[Bar]) -> Figure:
    """A panel for each number of processes."""
    groups = simulate.grouped(bars, lambda bar: bar.processes)
    figure = figures.new(10.0, 6.4)
    for axes, (processes, own) in zip(figure.subplots(2, 2).ravel(), groups.items(), strict=True):
        _bars(axes, own, [bar.grid for bar in own])
        axes.set_title(f"P={processes}, B={own[0].batch}", size=9)
    return _finished(figure, name)


def _panel_of(name: str, bars: Sequence[Bar]) -> Figure:
    figure = figures.new(6.0, 4.4)
    axes = figure.subplots()
    _bars(axes, bars, [f"P={bar.processes}\n{bar.grid}" for bar in bars], gains=False)
    return _finished(figure, name)


def _bars(axes: Any, bars: Sequence[Bar], names: Sequence[str], *, gains: bool = True) -> None:
    """An epoch by the equations: compute, and on it communication; what our programs send beside.

    The best bar has the speedups of the total and of communication over the first. A bar that would
    make all others small is cut, and its number stands on it.
    """
    places = np.arange(len(bars))
    epochs = np.array([simulate.IMAGES / bar.batch / 60 for bar in bars])
    compute, equation, weights, total = (
        epochs * np.array([getattr(bar, part) for bar in bars])
        for part in ("compute", "equation", "weights", "total")
    )
    shown = total - compute
    reduced = np.minimum(weights, shown)
    kinds = {
        "compute, measured here": (np.zeros_like(total), compute, {"color": "#bbbbbb"}),
        _HATCHED: (compute, reduced, {"color": "#ee7733", "hatch": "///"}),
        "communication by eq. 8, 9": (compute + reduced, shown - reduced, {"color": "#ee7733"}),
    }
    for label, (bottom, height, style) in kinds.items():
        axes.bar(places - 0.2, height, 0.38, bottom=bottom, label=label, **style)
    sent = epochs * np.array([bar.program or 0.0 for bar in bars])
    axes.bar(places + 0.2, sent, 0.38, color="#0077bb", label="what our program sends")
    top = 1.25 * (min(total.max(), 3 * total.min()) if gains else total.max())
    axes.set_ylim(0, top)
    for place, own in zip(places, total, strict=True):
        if own > top:
            axes.text(
                place - 0.2, 0.94 * top, f"{own:.0f}", ha="center", size=7, backgroundcolor="white"
            )
    for place, bar in zip(places, bars, strict=True):
        if bar.program is None:
            axes.text(place + 0.2, 0.01 * top, "none", ha="center", size=6, rotation=90)
    best = int(np.argmin(total))
    if gains and best:
        told = f"total {total[0] / total[best]:.2f}x\nsent {equation[0] / equation[best]:.2f}x"
        axes.text(best, total[best] + 0.08 * top, told, ha="center", va="bottom", size=7)
    axes.set_xticks(places, names, size=7, rotation=30 if len(bars) > 8 else 0)
    axes.set_ylabel("minutes of an epoch", size=8)


def _finished(figure: Figure, name: str) -> Figure:
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, ncols=2, loc="outside lower center")
    overlap = "; what overlaps is not drawn" if name == "figure 8" else ""
    figure.suptitle(f"{name.capitalize()}: an epoch of AlexNet on Cori, modelled{overlap}", size=10)
    return figure
