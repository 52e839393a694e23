"""A graph as a chain: its nodes in order, and from where to where each value is live."""

from __future__ import annotations

import math

from matplotlib.figure import Figure

from parscan_bp.arguments import check_kind
from parscan_bp.graph import GraphExplanation
from parscan_bp.plots.base import COLOURS, NEUTRAL, new_figure


def draw_graph(explanation: GraphExplanation, *, title: str | None = None) -> Figure:
    """Draws a graph as a chain of its live sets.

    A line is a value, from the node that makes it, a dot, to the last one that reads it; where it
    is read there is a ring. What lines cross a column is the live set there, whose bytes stand
    below.

    Args:
      explanation: what `parscan_bp.explain_graph` returns.
      title: replaces the numbers of nodes and levels.

    Returns:
      The figure.

    Raises:
      TypeError: if it is no explanation of a graph.

    Example:
      >>> import jax.numpy as jnp, parscan_bp as pb
      >>> from parscan_bp.layers import Add
      >>> nodes = {"h": (jnp.tanh, "x"), "y": (Add(), "x", "h")}
      >>> figure = draw_graph(pb.explain_graph(nodes, {}, {"x": jnp.ones((2, 3))}))
      >>> [axes.get_ylabel() for axes in figure.axes]
      ['value', 'MiB live']
    """
    check_kind("explanation", explanation, GraphExplanation, "what explain_graph returns")
    live = explanation.live
    made = dict.fromkeys(live.sets[0], 0)
    made |= {node.name: k for k, node in enumerate(live.order, start=1)}
    rows = {name: row for row, name in enumerate(made)}
    n = explanation.steps
    width, height = max(5.0, 2.5 + 0.22 * n), 2.4 + 0.17 * len(rows)
    figure = new_figure(min(width, 40.0), min(height, 40.0))
    ratio = [max(len(rows) * 0.17, 1.0), 1.0]
    axes, below = figure.subplots(2, sharex=True, height_ratios=ratio)
    for name, row in rows.items():
        last = max(k for k, names in enumerate(live.sets) if name in names)
        reads = [k for k, v in enumerate(live.order, start=1) if name in v.reads]
        # A value is read in the step that ends where it is live no more.
        end = max([last, *reads])
        skip = end - made[name] > 1
        axes.plot([made[name], end], [row] * 2, color=COLOURS[1 if skip else 0], lw=1.6)
        axes.plot(reads, [row] * len(reads), "o", mfc="white", mec="black", ms=3.5, mew=0.8)
        axes.plot(made[name], row, "o", color="black", ms=4.5)
        axes.text(made[name] - 0.4, row, name, ha="right", va="center", size=6)
    axes.set(ylim=(len(rows) - 0.3, -0.7), xlim=(-0.5 - 0.1 * n, n + 0.6), ylabel="value")
    axes.set_yticks([])
    sizes = [live.nbytes(k) / 2**20 for k in range(n + 1)]
    below.bar(range(n + 1), sizes, 0.8, color=NEUTRAL)
    below.set(xlabel="nodes done", ylabel="MiB live")
    below.set_xticks(range(0, n + 1, max(1, math.ceil(n / 20))))
    for one in (axes, below):
        for side in ("top", "right"):
            one.spines[side].set_visible(False)
    told = f"{n} nodes, {explanation.levels} levels of Blelloch(); lines that skip nodes in red"
    axes.set_title(title or told, fontsize=9)
    return figure
