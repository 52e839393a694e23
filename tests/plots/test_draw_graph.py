"""A graph is drawn as it is explained."""

import jax.numpy as jnp
import pytest

import parscan_bp as pb
from parscan_bp import plots


def test_a_graph_is_drawn_with_a_line_for_each_value():
    nodes = {"h": (jnp.tanh, "x"), "a": (jnp.sin, "h"), "y": (pb.layers.Add(), "a", "x")}
    found = pb.explain_graph(nodes, {}, {"x": jnp.ones((2, 3))})
    axes, below = plots.draw_graph(found).axes
    lines = [line.get_xdata().tolist() for line in axes.lines if line.get_linestyle() == "-"]
    assert sorted(lines) == [[0, 3], [1, 2], [2, 3], [3, 3]]
    assert [text.get_text() for text in axes.texts] == ["x", "h", "a", "y"]
    assert [bar.get_height() * 2**20 for bar in below.patches] == [24, 48, 48, 24]
    assert "3 nodes, 4 levels" in axes.get_title()
    assert plots.draw_graph(found, title="of mine").axes[0].get_title() == "of mine"
    with pytest.raises(TypeError, match=r"explanation: got .*; what explain_graph returns"):
        plots.draw_graph(nodes)
