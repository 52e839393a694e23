"""Arrays padded to what the kernels take, and pairs of chunk and sample as lanes."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp

from parscan_bp.kernels.tiles import LANES, ceil, padded_order


def folding(b, chunk: int) -> tuple[Callable, Callable]:
    """How (T, ..., N) becomes whole groups of `LANES`, and back.

    Many lanes are padded. Few are joined by those of the other chunks, which turns T steps
    into one chunk of K N lanes.
    """
    lanes = b.shape[-1]
    count = b.shape[0] // chunk
    if lanes >= LANES or count == 1:

        def fold(x, steps=chunk):
            return pad_axis(x, -1, ceil(lanes, LANES) - lanes)

        def unfold(x, steps=chunk):
            return x[..., :lanes]

    else:

        def fold(x, steps=chunk):
            x = jnp.moveaxis(x.reshape(count, steps, *x.shape[1:]), 0, -2)
            x = x.reshape(*x.shape[:-2], count * lanes)
            return pad_axis(x, -1, ceil(count * lanes, LANES) - count * lanes)

        def unfold(x, steps=chunk):
            x = x[..., : count * lanes].reshape(*x.shape[:-1], count, lanes)
            x = jnp.moveaxis(x, -2, 0)
            return x.reshape(count * steps, *x.shape[2:])

    return fold, unfold


def pad_size(x, axis):
    """With the order that the tile kernels want, see `tiles.padded_order`."""
    return pad_axis(x, axis, padded_order(x.shape[axis], x.dtype.itemsize) - x.shape[axis])


def pad_steps(x, steps, reverse):
    return pad_axis(x, 0, steps, front=reverse)


def pad_axis(x, axis, extra, *, front=False):
    if not extra:
        return x
    widths = [(0, 0)] * x.ndim
    widths[axis] = (extra, 0) if front else (0, extra)
    return jnp.pad(x, widths)
