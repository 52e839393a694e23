"""Which cells of Flax are which of ours: names of parameters, order of carries, biases.

Their gates are in our order everywhere: r, z, n and i, f, g, o. Their LSTM carries (c, h).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp

from parscan_bp.cells import GRU, LSTM, Elman, View
from parscan_bp.types import Array

MapParams = Mapping[str, Mapping[str, Array]]
"""Parameters of the linear maps in a cell, by name."""


def _joined(params: MapParams, names: str, leaf: str) -> Array:
    """A leaf of each of the named maps, side by side."""
    return jnp.concatenate([params[name][leaf] for name in names.split()], axis=-1)


def _weights(inputs: str, hidden: str) -> Callable[[MapParams], dict[str, Array]]:
    return lambda params: {
        "wi": _joined(params, inputs, "kernel"),
        "wh": _joined(params, hidden, "kernel"),
    }


def _simple(inputs: str, hidden: str) -> View:
    """Elman; the bias stands beside the input."""
    weights = _weights(inputs, hidden)
    arrange = lambda params: weights(params) | {"b": params[inputs]["bias"]}  # noqa: E731
    return View(Elman(), arrange, (0,), {"dot_general": 2, "add": 2, "tanh": 1})


def _gru(inputs: str, hidden: str, recurrent_bias: str | None, products: int, sums: int) -> View:
    """The GRU without recurrent biases, or with that of n alone."""
    weights = _weights(inputs, hidden)

    def arrange(params):
        ours = weights(params) | {"bi": _joined(params, inputs, "bias")}
        if recurrent_bias is None:
            return ours
        b = params[recurrent_bias]["bias"]
        zero = jnp.zeros_like(b)
        return ours | {"bh": jnp.concatenate([zero, zero, b])}

    arithmetic = {"dot_general": products, "add": sums, "logistic": 2, "tanh": 1, "mul": 3}
    cell = GRU(recurrent_bias=recurrent_bias is not None)
    # m, not r m: kept, that would be rounded before the sum in which it is a term.
    gates = ("logistic", 0), ("logistic", 1), ("tanh", 0), ("mul", 0, 1)
    return View(cell, arrange, (0,), arithmetic | {"sub": 1}, gates)


def _lstm(inputs: str, hidden: str, products: int, sums: int) -> View:
    """The LSTM; biases stand beside the hidden state."""
    weights = _weights(inputs, hidden)

    def arrange(params):
        return weights(params) | {"b": _joined(params, hidden, "bias")}

    arithmetic = {"dot_general": products, "add": sums, "logistic": 3, "tanh": 2, "mul": 3}
    gates = ("logistic", 0), ("logistic", 1), ("tanh", 0), ("logistic", 2)
    return View(LSTM(), arrange, (1, 0), arithmetic, gates)


NNX: dict[str, View] = {
    "SimpleCell": _simple("dense_i", "dense_h"),
    "GRUCell": _gru("dense_i", "dense_h", None, products=2, sums=5),
    "LSTMCell": _lstm("ii if_ ig io", "hi hf hg ho", products=8, sums=9),
    "OptimizedLSTMCell": _lstm("dense_i", "dense_h", products=2, sums=3),
}
"""Cells of `flax.nnx` by the names of their classes."""

LINEN: dict[str, View] = {
    "SimpleCell": _simple("i", "h"),
    "GRUCell": _gru("ir iz in", "hr hz hn", "hn", products=6, sums=8),
    "LSTMCell": _lstm("ii if ig io", "hi hf hg ho", products=8, sums=9),
    "OptimizedLSTMCell": _lstm("ii if ig io", "hi hf hg ho", products=2, sums=6),
}
"""Cells of `flax.linen` by the names of their classes."""


def view_of(cell: Any, views: Mapping[str, View], library: Any) -> View | None:
    """The view of a cell that is of exactly one of the library's classes."""
    kind = type(cell)
    return views.get(kind.__name__) if getattr(library, kind.__name__, None) is kind else None
