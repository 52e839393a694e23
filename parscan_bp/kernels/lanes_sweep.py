"""A vector through chunks of small maps: a thread per pair, lanes last."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from parscan_bp.kernels import compat, tiles
from parscan_bp.kernels.lanes_reduce import apply, read_map

NAME = "lanes_sweep"


def lanes_sweep(a, b, enter, *, chunk: int, reverse: bool = False, interpret=None):
    """x_t = a_t x_{t-1} + b_t inside every chunk, from the state that enters it.

    Args:
      a: (T, H, H, N), float32 or bfloat16.
      b: (T, H, N).
      enter: (T / chunk, H, N), float32: the state that enters each chunk.
      chunk: steps per chunk, a divisor of T.
      reverse: whether step t follows step t + 1.
      interpret: see `compat.kernel`.

    Returns:
      x (T, H, N) in float32.
    """
    length, size, _, lanes = a.shape
    group = tiles.lanes_group(size, chunk)

    def body(a_ref, b_ref, enter_ref, x_ref):
        k = lax.axis_index("chunk")
        lane = pl.ds(lax.axis_index("lanes") * tiles.LANES, tiles.LANES)

        def visit(g, x):
            first = g * group
            order = [chunk - 1 - first - s if reverse else first + s for s in range(group)]
            # All reads of a group before its writes: the compiler cannot move a read over a
            # write, as far as it knows the arrays may overlap.
            read = [read_map(a_ref, b_ref, k * chunk + s, size, lane) for s in order]
            for s, (m, v) in zip(order, read, strict=True):
                x = apply(m, x, v)
                for i in range(size):
                    x_ref[k * chunk + s, i, lane] = x[i]
            return x

        lax.fori_loop(0, chunk // group, visit, [enter_ref[k, i, lane] for i in range(size)])

    out = jax.ShapeDtypeStruct((length, size, lanes), jnp.float32)
    grid = {"lanes": lanes // tiles.LANES, "chunk": length // chunk}
    return compat.kernel(body, name=NAME, out=out, grid=grid, interpret=interpret)(a, b, enter)
