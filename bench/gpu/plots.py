"""Figure 8 of the BPPSA paper for these contenders, and the solve beside its floor."""

import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from bench.gpu import contenders, cudnn, grid, summary
from bench.shared import figures, timing

Result = dict[str, Any]
Series = tuple[list[int], list[float]]

_COLOURS = {
    cudnn.EAGER: "#cc3311",
    cudnn.GRAPH: "#ee7733",
    contenders.PLAIN: "#999999",
    "associative": "#aa3377",
    "sweep": "#ccbb44",
    "chunked": "#228833",
    "blelloch": "#66ccee",
    contenders.AUTO: "#44bb99",
    contenders.PALLAS: "#0077bb",
    contenders.LEVELS: "#332288",
    contenders.FUSED: "#000000",
    contenders.SEQUENTIAL: "#994455",
    contenders.KERNELS: "#0077bb",
}
_WITHIN = 2.5


def draw(result: Result, path: pathlib.Path) -> list[pathlib.Path]:
    """Draws `<path>_figure8.png` and `<path>_floor.png` from the points of the RNN.

    Returns:
        The files written.
    """
    shapes = [(p, summary.shape_of(p)) for p in result["points"]]
    axes = _axes([p for p, s in shapes if s.cell == grid.RNN and s.dtype == "float32"])
    figure_8, beside_floor = (path.with_name(f"{path.stem}_{s}.png") for s in ("figure8", "floor"))
    _figure_8(axes, result["settings"]["names"], figure_8)
    _floor(axes, beside_floor)
    return [figure_8, beside_floor]


def _axes(points: Sequence[Result]) -> list[tuple[str, str, list[Result]]]:
    """(axis, title, points along it): T at the commonest batch, B at the commonest length."""
    lines = []
    for axis, fixed, letter in (("length", "batch", "B"), ("batch", "length", "T")):
        values = [p[fixed] for p in points]
        most = max(values, key=values.count, default=None)
        along = sorted((p for p in points if p[fixed] == most), key=lambda p: p[axis])
        lines.append((axis, f"RNN, {letter}={most}", along))
    return lines


def _figure_8(axes: Any, names: Sequence[str], path: pathlib.Path) -> None:
    """Backward pass in seconds, its speedup, and that of a training step, over T and B."""
    points = [p for _, _, along in axes for p in along]
    base = cudnn.EAGER if any(_has(p, cudnn.EAGER) for p in points) else contenders.PLAIN
    rows: list[tuple[str, Callable[[str], Callable[[Result], float | None]]]] = [
        ("backward, s", lambda name: lambda p: _median(p, name, timing.BACKWARD)),
        (f"backward, speedup over {base}", lambda name: _speedup(name, base, timing.BACKWARD)),
        (f"training step, speedup over {base}", lambda name: _speedup(name, base, contenders.STEP)),
    ]
    figure = figures.new(11, 11)
    for panels, (label, value) in zip(figure.subplots(3, 2, squeeze=False), rows, strict=True):
        for panel, (axis, title, along) in zip(panels, axes, strict=True):
            for name in names:
                _line(panel, _series(along, axis, value(name)), name, color=_COLOURS[name])
            _dress(panel, axis, title, label)
    _legend(figure)
    figures.save(figure, path)


def _floor(axes: Any, path: pathlib.Path) -> None:
    """The kernels and the whole backward pass beside the floor."""
    figure = figures.new(11, 4.5)
    for panel, (axis, title, along) in zip(figure.subplots(1, 2), axes, strict=True):
        at, least = _series(along, axis, lambda p: p["floor"]["seconds"])
        within = at, [_WITHIN * value for value in least]
        solves = _series(along, axis, lambda p: _median(p, contenders.KERNELS, contenders.SOLVE))
        whole = _series(along, axis, lambda p: _median(p, contenders.PALLAS, timing.BACKWARD))
        _line(panel, (at, least), "floor", "-", color="black")
        _line(panel, within, f"{_WITHIN} times the floor", ":", color="black")
        _line(panel, solves, contenders.KERNELS, color=_COLOURS[contenders.KERNELS])
        _line(panel, whole, "pallas, whole backward pass", "o--", color=_COLOURS[contenders.PALLAS])
        _dress(panel, axis, title, "seconds")
    _legend(figure)
    figures.save(figure, path)


def _has(point: Result, name: str) -> bool:
    return summary.seconds(point, name, timing.BACKWARD) is not None


def _median(point: Result, name: str, quantity: str) -> float | None:
    samples = summary.seconds(point, name, quantity)
    return None if samples is None else float(np.median(samples))


def _speedup(name: str, base: str, quantity: str) -> Callable[[Result], float | None]:
    ratio = summary.Ratio((name,), (base,), quantity)

    def at(point: Result) -> float | None:
        found = summary.compare(ratio, point)
        return None if found is None else found["ratio"]

    return at


def _series(along: Sequence[Result], axis: str, value: Callable[[Result], float | None]) -> Series:
    """Where there is a positive value: the axes are logarithmic."""
    pairs = [(p[axis], v) for p in along if (v := value(p)) is not None and v > 0]
    return [at for at, _ in pairs], [v for _, v in pairs]


def _line(panel: Axes, series: Series, label: str, style: str = "o-", *, color: str) -> None:
    if series[0]:
        panel.plot(*series, style, color=color, lw=1.2, ms=3, label=label)


def _dress(panel: Axes, axis: str, title: str, label: str) -> None:
    panel.set_xlabel({"length": "T", "batch": "B"}[axis])
    if panel.lines:
        panel.set(xscale="log", yscale="log")
    panel.set_title(title, size=9)
    panel.set_ylabel(label, size=8)
    panel.grid(alpha=0.3)


def _legend(figure: Any) -> None:
    """One legend for all panels."""
    found = {}
    for panel in figure.axes:
        found |= dict(zip(*reversed(panel.get_legend_handles_labels()), strict=True))
    figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=6, fontsize=8)
