"""How large the cotangents of a chain are, and where they end."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from parscan_bp.arguments import check_kind
from parscan_bp.diagnose import Diagnosis
from parscan_bp.plots.base import COLOURS, NEUTRAL, new_figure


def draw_cotangents(diagnosis: Diagnosis, *, title: str | None = None) -> Figure:
    """Draws the norm of the carry's cotangent after each step, on a logarithmic axis.

    Time goes to the right, and cotangents come from there. Norms that are not finite, which have no
    place on the axis, are a red band; each step with a fault is a line with its operation, and the
    memory a grey band, before the last step, of as many steps.

    Args:
      diagnosis: what `parscan_bp.diagnose` returned.
      title: of the figure; ``None`` says how many steps there are, and the exponent.

    Returns:
      The figure.

    Raises:
      TypeError: if ``diagnosis`` is none.
      ValueError: if no norm is a positive number, as where there were no cotangents.

    Example:
      >>> import parscan_bp as pb
      >>> halved = pb.diagnose(lambda h, x: (0.5 * h, None), 1.0, length=8)
      >>> draw_cotangents(halved).axes[0].get_xlabel()
      'steps that have run'
    """
    check_kind("diagnosis", diagnosis, Diagnosis)
    norms, steps = diagnosis.norms, np.arange(diagnosis.length + 1)
    is_drawn = np.isfinite(norms) & (norms > 0)
    if not is_drawn.any():
        raise ValueError("diagnosis: got one without a positive, finite norm; there is no curve")
    figure = new_figure(7, 4)
    axes = figure.subplots()
    if diagnosis.memory is not None and diagnosis.memory <= diagnosis.length:
        start = diagnosis.length - diagnosis.memory
        label = f"memory: to {diagnosis.fraction:g} of the norm"
        axes.axvspan(start, diagnosis.length, color=NEUTRAL, alpha=0.35, lw=0, label=label)
    lost = ~np.isfinite(norms)
    axes.fill_between(
        steps, 0, 1, where=lost, step="mid", transform=axes.get_xaxis_transform(),
        color=COLOURS[1], alpha=0.2, lw=0, label="infinite or NaN" if lost.any() else None,
    )  # fmt: skip
    curve = np.where(is_drawn, norms, np.nan)
    style = "." if is_drawn.sum() < 2 else "-"
    axes.semilogy(steps, curve, style, color=COLOURS[0], lw=2, label="cotangent of the carry")
    _mark_faults(axes, diagnosis)
    order = ", the last of xs first" if diagnosis.reverse else ""
    if title is None:
        title = f"{diagnosis.length} steps{order}"
        told = diagnosis.exponent is not None and np.isfinite(diagnosis.exponent)
        title += f", Lyapunov exponent {diagnosis.exponent:.3g} per step" if told else ""
    axes.set(xlabel="steps that have run", ylabel="Euclidean norm", title=title)
    axes.set_xlim(0, max(diagnosis.length, 1))
    axes.legend(loc="best")
    return figure


def _mark_faults(axes, diagnosis: Diagnosis) -> None:
    """A line in the middle of each step with a fault, which is told beside it once."""
    told: dict[int, list[str]] = {}
    for fault in diagnosis.faults:
        if fault.step is not None:
            name = "" if fault.operation is None else f" by {fault.operation.primitive}"
            told.setdefault(fault.step, []).append(f"{fault.quantity} {fault.what}{name}")
    height = 0.03
    for step, words in told.items():
        ran = diagnosis.length - 1 - step if diagnosis.reverse else step
        axes.axvline(ran + 0.5, color=COLOURS[1], lw=1.5, ls=(0, (4, 3)))
        left = ran > diagnosis.length / 2
        axes.annotate(
            "\n".join([f"step {step}", *words]),
            (ran + 0.5, height),
            xycoords=axes.get_xaxis_transform(),
            xytext=(-4 if left else 4, 0),
            textcoords="offset points",
            ha="right" if left else "left",
            va="bottom",
            size=8,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
        )
        height += 0.05 * (len(words) + 2)  # above the words of another step
