"""Loss curves of several runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from parscan_bp.arguments import as_int, described
from parscan_bp.plots.base import COLOURS, new_figure

# A later run is drawn over the earlier ones, which must show through its gaps.
_STYLES = ("-", (0, (4, 3)), (0, (1, 2)))


def draw_losses(
    losses: Mapping[str, Sequence[float]],
    at: Mapping[str, Sequence[float]] | None = None,
    *,
    smooth: int = 20,
    xlabel: str = "iteration",
    title: str = "",
) -> Figure:
    """Draws the losses of several runs: faint as they are, and their running mean.

    Args:
      losses: for each run, by name, the loss of every iteration.
      at: for each run where its losses lie on the horizontal axis, as the seconds spent;
        ``None`` counts iterations from 1.
      smooth: iterations that the running mean takes.
      xlabel: what ``at`` is, with its unit.
      title: of the figure.

    Returns:
      The figure.

    Raises:
      TypeError: if ``losses`` or ``at`` is no mapping to numbers, or ``smooth`` no int.
      ValueError: if there is no run, a run has no losses, or ``at`` has other runs or lengths.

    Example:
      >>> figure = draw_losses({"plain": [2.0, 1.0], "ours": [2.0, 1.0]}, smooth=1)
      >>> [line.get_label() for line in figure.axes[0].get_lines()[1::2]]
      ['plain', 'ours']
    """
    curves = _curves("losses", losses)
    places = None if at is None else _curves("at", at)
    smooth = as_int("smooth", smooth)
    if not curves:
        raise ValueError("losses: got no runs; at least one is wanted")
    if places is not None and set(places) != set(curves):
        raise ValueError(
            f"at: got {sorted(places)}; the places of each run, of {sorted(curves)}, are wanted"
        )
    figure = new_figure(6, 4)
    axes = figure.subplots()
    for k, (name, curve) in enumerate(curves.items()):
        x = np.arange(1, len(curve) + 1) if places is None else places[name]
        if len(curve) == 0 or len(x) != len(curve):
            raise ValueError(
                f"losses[{name!r}]: got {len(curve)} losses at {len(x)} places; as many of both "
                "are wanted, and at least one"
            )
        width = min(smooth, len(curve))
        mean = np.convolve(curve, np.full(width, 1 / width), mode="valid")
        colour, style = COLOURS[k % len(COLOURS)], _STYLES[k % len(_STYLES)]
        axes.plot(x, curve, color=colour, lw=0.5, alpha=0.35)
        axes.plot(x[width - 1 :], mean, color=colour, ls=style, lw=2.2, label=name)
    axes.set(xlabel=xlabel, ylabel="training loss", title=title)
    axes.legend()
    return figure


def _curves(argument: str, given: Any) -> dict[str, np.ndarray]:
    """A vector of numbers for each run."""
    if not isinstance(given, Mapping):
        raise TypeError(
            f"{argument}: got {described(given)}; a mapping from the name of each run is wanted, "
            f"such as {{'run': {argument}}}"
        )
    curves = {}
    for name, each in given.items():
        curve = np.asarray(each)
        if curve.dtype.kind not in "iuf" and curve.size:
            raise TypeError(f"{argument}[{name!r}]: got {described(each)}; numbers are wanted")
        if curve.ndim != 1:
            raise ValueError(
                f"{argument}[{name!r}]: got shape {curve.shape}; the loss of every iteration, "
                "(iterations,), is wanted"
            )
        curves[name] = curve
    return curves
