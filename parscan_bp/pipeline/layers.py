"""Layers that go into one block: how many, their measured times, and the block of several."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from parscan_bp.arguments import as_int, described
from parscan_bp.pipeline.blocks import Block
from parscan_bp.pipeline.schedules import Schedule
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


@functools.lru_cache(maxsize=128)
def joined_block(layers: tuple[Block, ...]) -> Block:
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


def split_of(
    split: int | Sequence[int] | None, schedule: Schedule, layers: int, devices: int
) -> tuple[tuple[int, ...] | None, int]:
    """The split if it is known, and how many blocks there are.

    Raises:
      TypeError, ValueError: if it is none of the layers, or there are fewer than blocks.
    """
    if not layers:
        raise ValueError("layers: got none; at least one for each block is wanted")
    made: tuple[int, ...] | None = None
    if split is None:
        blocks = schedule.blocks or min(devices, layers)
    elif isinstance(split, Sequence) and not isinstance(split, str):
        made = tuple(as_int(f"split[{k}]", each) for k, each in enumerate(split))
        blocks = len(made)
    else:
        blocks = as_int("split", split)
    schedule.check_blocks(blocks)
    if split is None and blocks > layers:
        raise ValueError(
            f"schedule: {schedule} is for {blocks} blocks, and the model has {layers} "
            f"layer{'s' if layers > 1 else ''}; at least one for each block is wanted"
        )
    if blocks > layers or (made is not None and sum(made) != layers):
        raise ValueError(
            f"split: got {described(split)} for {layers} layers; numbers that sum to {layers}, or "
            f"at most {layers} blocks, are wanted"
        )
    return made, blocks
