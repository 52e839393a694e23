"""Who works on which batch when: a tick table over time."""

from __future__ import annotations

from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from parscan_bp.arguments import check_positive
from parscan_bp.pipeline import Costs, Table, bubble, timeline
from parscan_bp.plots.base import COLOURS, new_figure

_KINDS = {
    "forward": (COLOURS[0], "forward"),
    "again": (COLOURS[5], "linearised again"),
    "backward": (COLOURS[2], "backward"),
    "input_gradient": (COLOURS[2], "gradient of the input"),
    "weight_gradient": (COLOURS[3], "gradient of the weights"),
}
_LONGEST = 80.0
"""In inches: more spans than can be told apart."""


def draw_pipeline(
    table: Table,
    costs: Costs | None = None,
    *,
    until: float | None = None,
    title: str | None = None,
) -> Figure:
    """Draws a tick table over time: a row for each block, a bar for each pass, its batch in it.

    Bars of every second batch are lighter. A tick under a bar is an update.

    Args:
      table: of a schedule.
      costs: of a batch, as in `parscan_bp.pipeline.timeline`.
      until: when the drawing ends; ``None`` draws all.
      title: replaces the schedule's name and its bubble.

    Returns:
      The figure.

    Raises:
      TypeError: if an argument is none such.
      ValueError: if it would be too long to be read: give ``until`` or fewer batches.

    Example:
      >>> import parscan_bp as pb
      >>> table = pb.pipeline.GPipe(4).table(blocks=3, batches=1)
      >>> draw_pipeline(table).axes[0].get_ylabel()
      'block'
    """
    spans = timeline(table, costs)
    if until is not None:
        check_positive("until", until)
    end = max(span.stop for span in spans) if until is None else until
    # An update has no length: the last one is at the end.
    spans = [span for span in spans if span.start < end or span.stop == end]
    shortest = min(span.stop - span.start for span in spans if span.stop > span.start)
    width = 1.5 + 0.28 * end / shortest
    if width > _LONGEST:
        raise ValueError(
            f"until: got {until}; at most {_LONGEST / 0.28 * shortest:.3g} can be read"
        )
    figure = new_figure(max(5.0, width), 1.3 + 0.5 * table.blocks)
    axes = figure.subplots()
    seen = {}
    for span in spans:
        k, task = span.task.block, span.task
        if task.kind == "update":
            axes.plot([span.start] * 2, [k + 0.36, k + 0.48], color="black", lw=1.2)
            continue
        kind = "again" if span.again else task.kind
        colour, seen[kind] = _KINDS[kind]
        shade = [1 - (1 - part) * (0.55 if task.batch % 2 else 1.0) for part in to_rgb(colour)]
        axes.barh(k, span.stop - span.start, 0.7, span.start, color=shade, ec="white", lw=0.8)
        middle = (span.start + span.stop) / 2
        axes.text(middle, k, str(task.batch), ha="center", va="center", size=7)
    axes.set(xlim=(0, end), ylim=(table.blocks - 0.4, -0.6), xlabel="time", ylabel="block")
    axes.set_yticks(range(table.blocks))
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    idle = f"{table.name}: {bubble(table, costs):.0%} idle over {table.batches} batches"
    axes.set_title(title or idle, fontsize=10)
    handles = [Patch(color=_KINDS[kind][0], label=label) for kind, label in seen.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    return figure
