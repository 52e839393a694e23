"""Figures 7 to 10 of the first BPPSA paper and figure 10 of the second, for VGG-11."""

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.paper.images import networks
from bench.paper.vgg11 import step_counts, training
from bench.paper.vgg11.schedules import APPLY, PRODUCT
from bench.shared import figures

Result = dict[str, Any]

PAPERS_LEVELS = "2"
"""L_m of section 5.3: products on levels L0 to L2 of its figure 3."""
_PANEL = (5.2, 4.0)
_COLOURS = {APPLY: "#ee7733", PRODUCT: "#0077bb"}
_BP, _LINEAR = "#009988", "#cc3311"
_CONVENTIONS = (
    "paper's conventions: zeros of one image, unpruned BP",
    "zeros known before training, pruned linear scan",
)
_TESTED = "test accuracy {:.1%} unpruned, {:.1%} pruned"
_TITLES = {
    step_counts.FULL_WEIGHTS: "unpruned",
    step_counts.STATIC: "pruned, zeros known before training",
    step_counts.DYNAMIC: "pruned, zeros of one image",
}


def _counts(result: Result) -> dict[str, Any]:
    """Those of the network that is drawn."""
    return result["counts"][training.SCOPE]


def figure10(result: Result) -> Figure:
    """Flops of each step of the truncated scan, in the paper's conventions and in static ones."""
    counts = _counts(result)
    panels = _panels(1, 2)
    dense = counts["conventions"][step_counts.FULL_WEIGHTS]["scans"]["0"]["steps"]
    for axes, zeros in zip(panels, (step_counts.DYNAMIC, step_counts.STATIC), strict=True):
        own = counts["conventions"][zeros]["scans"]
        scan, linear = own[PAPERS_LEVELS], own["0"]["steps"]
        _scatter(axes, scan["steps"], scan["steps"]["flops"], scan["steps"]["dense"])
        papers = zeros == step_counts.DYNAMIC
        baseline = dense if papers else linear
        axes.scatter(baseline["dense"], baseline["flops"], 22, color=_BP, label="baseline")
        axes.axhline(max(baseline["flops"]), color=_BP, ls="--", lw=1)
        above = scan["above_bp"] if papers else scan["above_linear"]
        whose = _CONVENTIONS[0] if papers else _CONVENTIONS[1]
        total = len(scan["steps"]["kind"])
        axes.set_title(f"{whose}\n{above} of {total} steps above the baseline's largest", size=9)
        axes.set(ylabel="flop")
    return _titled(panels, f"Figure 10: pruned VGG-11, truncated scan, L_m = {PAPERS_LEVELS}")


def figure7(result: Result) -> Figure:
    """What each step of the whole scan takes: flops, and seconds where steps were timed."""
    counts, times = _counts(result), result.get("steps")
    full, pruned = step_counts.FULL_WEIGHTS, step_counts.DYNAMIC
    levels = max(counts["conventions"][full]["scans"])
    panels = _panels(2 if times else 1, 2)
    for axes, zeros in zip(panels[-2:], (full, pruned), strict=True):
        scans = counts["conventions"][zeros]["scans"]
        flops, linear = (scans[which]["steps"]["flops"] for which in (levels, "0"))
        _whole(axes, scans[levels]["steps"], flops, linear, counts["bp"]["largest"])
        axes.set_title(f"flops, {_TITLES[zeros]}", size=9)
        axes.set(ylabel="flop")
    for axes, zeros in zip(panels[:-2], (full, step_counts.STATIC), strict=False):
        steps = counts["conventions"][zeros]["scans"][levels]["steps"]
        seconds = times["seconds"][zeros]
        _whole(axes, steps, seconds[levels], seconds["0"], max(times["bp"]))
        left_out = sum(s is None for s in seconds[levels])
        told = f"\n{left_out} steps too large to run" * bool(left_out)
        axes.set_title(f"measured, {_TITLES[zeros]}{told}", size=9)
        axes.set(ylabel="seconds")
    return _titled(panels, "Figure 7: each step of the whole scan")


def _whole(
    axes: Axes, steps: dict[str, Any], values: list[Any], linear: list[Any], bp: float
) -> None:
    """The steps of the whole scan, and the largest of both baselines."""
    _scatter(axes, steps, values, steps["dense"], tags_above=bp)
    bound = max(value for value in linear if value)
    axes.axhline(bound, color=_LINEAR, ls="--", lw=1, label="largest step of the linear scan")
    axes.axhline(bp, color=_BP, ls="--", lw=1, label="largest step of BP")


def figure8(result: Result) -> Figure:
    """Non-zeros of the operands of every product, and the flops it takes."""
    panels = _panels(1, 2)

    def draw(axes: Axes, own: dict[str, Any]) -> None:
        steps = own["scans"][max(own["scans"])]["steps"]
        rows = [k for k, kind in enumerate(steps["kind"]) if kind == PRODUCT]
        left, right = np.array([steps["nnz"][k] for k in rows]).T
        flops = [steps["flops"][k] for k in rows]
        dots = axes.scatter(left, right, 40, np.log10(flops), cmap="viridis", edgecolor="black")
        axes.figure.colorbar(dots, ax=axes, label="log10 flop")
        worst = sorted(range(len(rows)), key=lambda k: -flops[k])[:4]
        for rank, k in enumerate(worst, 1):
            where = {"textcoords": "offset points", "ha": "right", "va": "center"}
            axes.annotate(str(rank), (left[k], right[k]), xytext=(-6, 0), fontsize=7, **where)
        listed = (f"{rank} {steps['name'][rows[k]]}" for rank, k in enumerate(worst, 1))
        axes.text(0.03, 0.97, "\n".join(listed), transform=axes.transAxes, va="top", fontsize=7)
        axes.margins(0.15, 0.3)
        axes.set(xscale="log", yscale="log", ylabel="non-zeros, right operand")

    _each(result, panels, draw)
    return _titled(panels, "Figure 8: operands of every product", "non-zeros, left operand")


def figure9(result: Result) -> Figure:
    """Sparsity of every transposed Jacobian and of every product of the up-sweep."""
    panels = _panels(2, 1, wide=True)

    def draw(axes: Axes, own: dict[str, Any]) -> None:
        steps = own["scans"][max(own["scans"])]["steps"]
        made = [
            (steps["name"][k], steps["sparsity"][k])
            for k, kind in enumerate(steps["kind"])
            if kind == PRODUCT
        ]
        names = _counts(result)["layers"] + [name for name, _ in made]
        values = own["sparsity"] + [sparsity for _, sparsity in made]
        filled = [name.startswith("conv") and ".." not in name for name in names]
        at = np.arange(len(names))
        axes.scatter(
            at, values, 24, c=["#0077bb" if f else "none" for f in filled], edgecolor="#0077bb"
        )
        axes.axvline(len(own["sparsity"]) - 0.5, color="#999999", lw=0.8)
        axes.set_xticks(at, names, rotation=90, fontsize=7)
        axes.set(ylabel="sparsity", ylim=(-0.03, 1.03))

    _each(result, panels, draw)
    return _titled(
        panels, "Figure 9: sparsity; filled: convolutions; right of the line: products", ""
    )


def draw(result: Result) -> dict[str, Figure]:
    """The figures whose parts are there."""
    counted = {"7": figure7, "8": figure8, "9": figure9, "10": figure10}
    makers = counted if "counts" in result else {}
    drawn = {f"_figure{name}": make(result) for name, make in makers.items()}
    for figure in drawn.values():
        figure.suptitle(f"{figure.get_suptitle()}\n{_learned(result)}", size=11)
    return drawn


def _learned(result: Result) -> str:
    """What the network knows whose zeros are counted."""
    if "pruning" not in result:
        return "a network that is not recorded"
    before = result["training"]["test"]["accuracy"]
    after = result["pruning"][training.SCOPE]["test"]["accuracy"]
    chance = ", at chance" if after < 2 / networks.CLASSES else ""
    return f"channels / {result['settings']['divisor']}; {_TESTED.format(before, after)}{chance}"


def _panels(rows: int, columns: int, wide: bool = False) -> list[Axes]:
    width, height = (9, 3.2) if wide else _PANEL
    figure = figures.new(width * columns, height * rows)
    return list(figure.subplots(rows, columns).ravel())


def _each(result: Result, panels: list[Axes], draw: Callable[[Axes, dict[str, Any]], None]) -> None:
    for axes, zeros in zip(panels, (step_counts.FULL_WEIGHTS, step_counts.DYNAMIC), strict=True):
        draw(axes, _counts(result)["conventions"][zeros])
        axes.set_title(_TITLES[zeros], size=10)


def _scatter(
    axes: Axes,
    steps: dict[str, Any],
    values: list[Any],
    at: list[float],
    tags_above: float = np.inf,
) -> None:
    """Circles by kind, filled on the critical path; a step without a value is left out."""
    for kind, colour in _COLOURS.items():
        rows = [k for k, own in enumerate(steps["kind"]) if own == kind and values[k] is not None]
        fill = [colour if steps["critical"][k] else "none" for k in rows]
        axes.scatter(
            [at[k] for k in rows], [values[k] for k in rows], 30, c=fill, edgecolor=colour, zorder=2
        )
        axes.scatter([], [], 30, color=colour, label=f"{kind} (filled: critical)")
    axes.set(xscale="log", yscale="log")
    axes.margins(x=0.2)
    tagged = [k for k, value in enumerate(values) if value is not None and value > tags_above]
    _tag(axes, [(at[k], values[k]) for k in tagged], [steps["name"][k] for k in tagged])


def _tag(axes: Axes, points: list[tuple[float, float]], names: list[str]) -> None:
    """Names to the left of points, or to the right where that is another point's place."""
    places = axes.transData.transform(points) if points else np.empty((0, 2))
    for point, place, name in zip(points, places, names, strict=True):
        right, up = (place - places).T
        on_left = bool(np.any((right > 1) & (right < 60) & (abs(up) < 12)))
        # One of two that stand above each other is named higher, the other lower.
        lift = np.sign(np.sum(up[(abs(right) <= 1) & (abs(up) < 12)]))
        axes.annotate(
            name,
            point,
            xytext=(5 if on_left else -5, 4 * lift),
            textcoords="offset points",
            ha="left" if on_left else "right",
            va="center",
            fontsize=6,
        )


def _titled(
    panels: list[Axes], title: str, xlabel: str = "multiplications if no number were zero"
) -> Figure:
    for axes in panels:
        axes.set_xlabel(xlabel, size=9)
    figure = panels[0].figure
    figure.suptitle(title, size=11)
    handles, labels = panels[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8)
    return figure
