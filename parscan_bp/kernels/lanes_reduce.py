"""Chunks of small maps to one map each: a thread per pair, lanes last."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from parscan_bp.kernels import compat, tiles

NAME = "lanes_reduce"


def lanes_reduce(a, b, *, chunk: int, reverse: bool = False, interpret=None):
    """The affine map x -> M x + v of every chunk of steps x -> a_t x + b_t.

    One thread composes the maps of one lane in registers, columns and all: neither shared
    memory nor a word from another thread is needed, and 128 neighbouring lanes make whole
    lines of memory.

    Args:
      a: (T, H, H, N), float32 or bfloat16.
      b: (T, H, N).
      chunk: steps per chunk, a divisor of T.
      reverse: whether step t follows step t + 1.
      interpret: see `compat.kernel`.

    Returns:
      M (T / chunk, H, H, N) and v (T / chunk, H, N) in float32.
    """
    length, size, _, lanes = a.shape
    group = tiles.lanes_group(size, chunk)

    def body(a_ref, b_ref, m_ref, v_ref):
        k = lax.axis_index("chunk")
        lane = pl.ds(lax.axis_index("lanes") * tiles.LANES, tiles.LANES)

        def steps(g):
            return [read_step(a_ref, b_ref, k, g * group + s, lane) for s in range(group)]

        def read_step(a_ref, b_ref, k, s, lane):
            t = k * chunk + (chunk - 1 - s if reverse else s)
            return read_map(a_ref, b_ref, t, size, lane)

        def then(total, read):
            for step in read:
                total = compose(step, total)
            return total

        first, *rest = steps(0)
        total = lax.fori_loop(1, chunk // group, lambda g, c: then(c, steps(g)), then(first, rest))
        m, v = total
        for i in range(size):
            v_ref[k, i, lane] = v[i]
            for j in range(size):
                m_ref[k, i, j, lane] = m[i][j]

    out = (
        jax.ShapeDtypeStruct((length // chunk, size, size, lanes), jnp.float32),
        jax.ShapeDtypeStruct((length // chunk, size, lanes), jnp.float32),
    )
    grid = {"lanes": lanes // tiles.LANES, "chunk": length // chunk}
    return compat.kernel(body, name=NAME, out=out, grid=grid, interpret=interpret)(a, b)


def read_map(a_ref, b_ref, t, size, lane):
    """(a, b) of step t as nested lists of one number per lane, in float32."""
    a = [[a_ref[t, i, j, lane].astype(jnp.float32) for j in range(size)] for i in range(size)]
    return a, [b_ref[t, i, lane].astype(jnp.float32) for i in range(size)]


def compose(second, first):
    """(a2 a1, a2 b1 + b2)."""
    (a2, b2), (a1, b1) = second, first
    columns = [apply(a2, [row[j] for row in a1]) for j in range(len(b1))]
    m = [[column[i] for column in columns] for i in range(len(b1))]
    return m, apply(a2, b1, b2)


def apply(a, x, b=None):
    """a x + b."""
    out = []
    for i, row in enumerate(a):
        total = None if b is None else b[i]
        for entry, value in zip(row, x, strict=True):
            product = entry * value
            total = product if total is None else total + product
        out.append(total)
    return out
