"""A vector through chunks of maps: a warpgroup per few pairs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from parscan_bp.kernels import compat, tiles
from parscan_bp.kernels.compat import from_zero, plgpu
from parscan_bp.kernels.layouts import spread, vector_layout
from parscan_bp.kernels.tile_maps import Maps

NAME = "tile_sweep"


def tile_sweep(maps: Maps, b, enter, *, chunk: int, reverse: bool = False, interpret=None):
    """x_t = A_t x_{t-1} + b_t inside every chunk, from the state that enters it.

    Args:
      maps: A_t, see `Maps`.
      b: (T, B, H), H at least `tiles.MIN_ORDER`.
      enter: (T / chunk, B, H), float32: the state that enters each chunk.
      chunk: steps per chunk, a divisor of T.
      reverse: whether step t follows step t + 1.
      interpret: see `compat.kernel`.

    Returns:
      x (T, B, H) in float32.
    """
    length, batch, size = b.shape
    assert size >= tiles.MIN_ORDER, size
    tile = maps.tile(batch, size)
    pairs, rows = tile.pairs, tile.rows
    shape, layout = (pairs, rows, size), vector_layout(pairs)
    depth = max(2, tiles.depth(maps.step_bytes(tile), 4, maps.held_bytes(tile)))

    def body(*refs):
        *map_refs, b_ref, enter_ref, x_ref, map_s, b_s, x_s, bars, first_bar, held_bar = refs
        k, zero = lax.axis_index("chunk"), lax.axis_index("batch")
        samples, row = pl.ds(zero * pairs, pairs), from_zero(zero, rows)
        read = maps.reader(tile, map_refs, map_s, samples, zero)

        def step_at(s):
            return k * chunk + (chunk - 1 - s if reverse else s)

        def fetch(s, slot):
            read.fetch(step_at(s), slot, bars.at[slot])
            compat.fetch(b_ref.at[step_at(s), samples, row], b_s.at[slot], bars.at[slot])

        for s in range(min(depth, chunk)):
            fetch(s, s)
        # The state before step 0 lies where the last step of a round will put its own.
        compat.fetch(enter_ref.at[k, samples, row], x_s.at[depth - 1], first_bar)
        read.fetch_held(held_bar)
        plgpu.barrier_wait(first_bar)

        def vector(ref):
            v = compat.load(ref.at[:, pl.ds(0, size)], layout.reduce(1)).astype(jnp.float32)
            return spread(v, shape, (0, 2), layout)

        def step(s, carry):
            slot = lax.rem(s, depth)
            plgpu.barrier_wait(bars.at[slot])
            a, scale = read.at(slot)
            x = vector(x_s.at[lax.rem(s + depth - 1, depth)])
            if scale is not None:
                x = x * vector(scale)
            matrix = compat.load(a.at[:, :, pl.ds(0, size)], layout).astype(jnp.float32)
            b_t = compat.load(b_s.at[slot], layout.reduce(2)).astype(jnp.float32)
            new = jnp.sum(matrix * x, axis=2) + b_t
            compat.free_slots(s, depth)
            x_s[slot] = new
            plgpu.commit_smem()
            compat.store(x_s.at[slot], x_ref, step_at(s), samples, row)

            @pl.when(s + depth < chunk)
            def refill():
                fetch(s + depth, slot)

            return carry

        lax.fori_loop(0, chunk, step, None)
        plgpu.wait_smem_to_gmem(0)

    out = jax.ShapeDtypeStruct(compat.room(b.shape, (1, pairs, rows)), jnp.float32)
    scratch = [
        maps.scratch(tile, depth),
        plgpu.SMEM((depth, pairs, rows), b.dtype),
        plgpu.SMEM((depth, pairs, rows), jnp.float32),
        plgpu.Barrier(num_arrivals=2, num_barriers=depth),
        plgpu.Barrier(num_arrivals=1),
        plgpu.Barrier(num_arrivals=maps.held_arrivals(tile)),
    ]
    grid = {"batch": -(-batch // pairs), "chunk": length // chunk}
    how = {"grid": grid, "scratch": scratch, "interpret": interpret}
    run = compat.kernel(body, name=NAME, out=out, **how)
    return run(*maps.arrays, b, enter)[:, :batch, :size]
