"""Which layers go into which block: measured times, and the cut that balances them."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from parscan_bp.pipeline.blocks import Block
from parscan_bp.types import Array, PyTree

RUNS = 3
"""Of which the fastest counts."""


def layer_seconds(
    layers: Sequence[Block],
    params: Sequence[PyTree],
    states: Sequence[PyTree],
    x: PyTree,
    key: Array,
) -> list[float]:
    """What both passes of each layer take, in seconds, at what the layers below make of x.

    Source: PipeDream (SOSP 2019), section 3.1, profiles layers for the same end.
    """
    seconds = []
    for layer, own, state in zip(layers, params, states, strict=True):
        both = jax.jit(functools.partial(_both_passes, layer))
        y = jax.block_until_ready(both(own, state, x, key))[0]
        taken = []
        for _ in range(RUNS):
            start = time.perf_counter()
            jax.block_until_ready(both(own, state, x, key))
            taken.append(time.perf_counter() - start)
        seconds.append(min(taken))
        x = y
    return seconds


def _both_passes(layer: Block, params: PyTree, state: PyTree, x: PyTree, key: Array):
    floats = all(jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in jax.tree.leaves(x))
    apply = lambda params, x: layer.apply(params, state, x, key)  # noqa: E731
    if floats:
        y, pull, _ = jax.vjp(apply, params, x, has_aux=True)
    else:
        y, pull, _ = jax.vjp(lambda params: apply(params, x), params, has_aux=True)
    return y, pull(jax.tree.map(jnp.ones_like, y))


def balanced(seconds: Sequence[float], blocks: int) -> tuple[int, ...]:
    """How many layers each block gets, so that the slowest block is as fast as can be.

    With s_i the seconds of layer i, over all cuts 0 = c_0 < ... < c_K = L:

        min max_k (s_{c_k} + ... + s_{c_{k+1} - 1})

    by dynamic programming over the number of blocks; K L^2 sums.

    Args:
      seconds: of each layer.
      blocks: K, at most as many as there are layers.

    Example:
      >>> from parscan_bp.pipeline.balance import balanced
      >>> balanced([1.0, 1.0, 1.0, 3.0], blocks=2)
      (3, 1)
    """
    layers = len(seconds)
    until = np.concatenate([[0.0], np.cumsum(seconds)])
    # slowest[j]: of the first j layers in so many blocks; cut[k][j]: where the last one begins.
    slowest = np.where(np.arange(layers + 1) == 0, 0.0, np.inf)
    cut = np.zeros((blocks + 1, layers + 1), int)
    for k in range(1, blocks + 1):
        before, slowest = slowest, np.full(layers + 1, np.inf)
        for j in range(k, layers + 1):
            worst = np.maximum(before[:j], until[j] - until[:j])
            cut[k, j] = int(np.argmin(worst))
            slowest[j] = worst[cut[k, j]]
    ends = [layers]
    for k in range(blocks, 0, -1):
        ends.append(int(cut[k, ends[-1]]))
    return tuple(b - a for a, b in itertools.pairwise(reversed(ends)))


@functools.lru_cache(maxsize=128)
def joined(layers: tuple[Block, ...]) -> Block:
    """One block of several layers, whose params and states are lists of theirs.

    Its random key is that of its layer if it has one layer only; layer i of several has
    ``jax.random.split(key, layers)[i]``.
    """

    def apply(params: PyTree, state: PyTree, x: PyTree, key: Array) -> tuple[PyTree, PyTree]:
        states = []
        keys = [key] if len(layers) == 1 else list(jax.random.split(key, len(layers)))
        for layer, own, before, own_key in zip(layers, params, state, keys, strict=True):
            x, after = layer.apply(own, before, x, own_key)
            states.append(after)
        return x, states

    return Block(apply)
