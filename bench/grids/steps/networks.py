"""Recurrent networks as one writes them down, without a cell of the library."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from bench.grids.steps.rollouts import Rollout, keys, layer_norm, normal
from bench.shared import candidates

INPUTS = 32


def _elman(w: Any, h: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.tanh(h @ w[0] + x @ w[1])


def _leaky(w: Any, h: jax.Array, x: jax.Array) -> jax.Array:
    return 0.8 * h + 0.2 * jnp.tanh(h @ w[0] + x @ w[1])


def _normalised(w: Any, h: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.tanh(layer_norm(h @ w[0] + x @ w[1]))


def _gated(w: Any, h: jax.Array, x: jax.Array) -> jax.Array:
    ours = jnp.split(h @ w[0], 3, axis=-1)
    theirs = jnp.split(x @ w[1], 3, axis=-1)
    r, z = (jax.nn.sigmoid(a + b) for a, b in zip(ours[:2], theirs[:2], strict=True))
    return (1 - z) * jnp.tanh(theirs[2] + r * ours[2]) + z * h


_CELLS = {
    "Elman": (_elman, 1),
    "leaky": (_leaky, 1),
    "layer norm": (_normalised, 1),
    "GRU": (_gated, 3),
}


def recurrent(kind: str, hidden: int, length: int, *rows: int) -> Rollout:
    """A network that carries one array; without ``rows`` it reads one sequence of vectors."""
    cell, gates = _CELLS[kind]

    def run(scan: candidates.Scan, weights: Any) -> Any:
        def step(h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            h = cell(weights, h, x)
            return h, h

        return scan(step, jnp.zeros((*rows, hidden)), _inputs(length, rows))[1]

    return Rollout(_weights(hidden, gates), run)


def _of_joined(w: Any, h: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.concatenate([h, x], axis=-1) @ jnp.concatenate(w)


def _of_transposed(w: Any, h: jax.Array, x: jax.Array) -> jax.Array:
    return h @ w[0].T + x @ w[1].T


def lstm(layout: str, hidden: int, length: int, *rows: int) -> Rollout:
    """An LSTM with one product of state and input, or with weights as PyTorch lays them out."""
    transposed = layout == "transposed"
    product = _of_transposed if transposed else _of_joined

    def run(scan: candidates.Scan, weights: Any) -> Any:
        def step(carry: Any, x: jax.Array) -> tuple[Any, jax.Array]:
            h, c = carry
            i, f, g, o = jnp.split(product(weights, h, x), 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros((*rows, hidden))
        return scan(step, (zeros, zeros), _inputs(length, rows))[1]

    weights = _weights(hidden, 4)
    return Rollout([w.T for w in weights] if transposed else weights, run)


def _weights(hidden: int, gates: int) -> list[jax.Array]:
    """Of the state and of the input, (H, gates H) and (inputs, gates H)."""
    shapes = ((hidden, gates * hidden), (INPUTS, gates * hidden))
    drawn = zip(keys(3), shapes, strict=False)
    return [normal(key, shape) / shape[0] ** 0.5 for key, shape in drawn]


def _inputs(length: int, rows: tuple[int, ...]) -> jax.Array:
    return normal(keys(3)[2], (length, *rows, INPUTS))


NETWORKS: dict[str, Callable[[], Rollout]] = {
    f"{kind} by hand, {hidden} x {rows}": functools.partial(recurrent, kind, hidden, length, rows)
    for hidden, rows, length in ((32, 1, 300), (20, 16, 300), (128, 16, 100), (128, 64, 50))
    for kind in _CELLS
}
NETWORKS |= {
    "GRU by hand, 64, a vector": lambda: recurrent("GRU", 64, 1000),
    "Elman by hand, 64 x 16, long": lambda: recurrent("Elman", 64, 1000, 16),
    "LSTM by hand, joined, 20, a vector": lambda: lstm("joined", 20, 1000),
    "LSTM by hand, joined, 64 x 16": lambda: lstm("joined", 64, 1000, 16),
    "LSTM by hand, transposed, 64, a vector": lambda: lstm("transposed", 64, 1000),
    "LSTM by hand, transposed, 64 x 16": lambda: lstm("transposed", 64, 1000, 16),
}
"""Programs by name, as `rollouts.ROLLOUTS`."""
