"""Chunks of maps to one map each: a warpgroup per few pairs, products by rank-1 updates."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from parscan_bp.kernels import compat, tiles
from parscan_bp.kernels.compat import from_zero, plgpu
from parscan_bp.kernels.layouts import matrix_layout, spread
from parscan_bp.kernels.tile_maps import Maps

NAME = "tile_reduce"


def tile_reduce(maps: Maps, b, *, chunk: int, reverse: bool = False, interpret=None):
    """The affine map x -> M x + v of every chunk of steps x -> A_t x + b_t.

    X = [M v] lies in shared memory, a step is X <- A_t X + [0 b_t]. The columns of X do not
    depend on one another; large maps are divided by columns among several warpgroups. The
    product is a sum of outer products, one multiply-add per number in float32: tensor cores
    would round it to tf32.

    Args:
      maps: A_t, see `Maps`.
      b: (T, B, H).
      chunk: steps per chunk, a divisor of T.
      reverse: whether step t follows step t + 1.
      interpret: see `compat.kernel`.

    Returns:
      M (T / chunk, B, H, H) and v (T / chunk, B, H) in float32.
    """
    length, batch, size = b.shape
    tile = maps.tile(batch, size)
    pairs, rows, columns = tile.pairs, tile.rows, tile.columns
    shape, layout = (pairs, rows, columns), matrix_layout(pairs)
    depth = tiles.depth(
        maps.step_bytes(tile), 3, 4 * pairs * rows * columns + maps.held_bytes(tile)
    )

    def body(*refs):
        *map_refs, b_ref, m_ref, v_ref, map_s, b_s, x_s, v_s, bars, held_bar = refs
        k, part = lax.axis_index("chunk"), lax.axis_index("columns")
        zero = lax.axis_index("batch")
        samples, row = pl.ds(zero * pairs, pairs), from_zero(zero, rows)
        read = maps.reader(tile, map_refs, map_s, samples, zero)

        def fetch(s, slot):
            t = k * chunk + (chunk - 1 - s if reverse else s)
            read.fetch(t, slot, bars.at[slot])
            compat.fetch(b_ref.at[t, samples, row], b_s.at[slot], bars.at[slot])

        for s in range(min(depth, chunk)):
            fetch(s, s)
        read.fetch_held(held_bar)
        at = [plgpu.broadcasted_iota(jnp.int32, shape, d, layout=layout) for d in (1, 2)]
        column = at[1] + part * columns
        x_s[...] = jnp.where(at[0] == column, 1.0, 0.0).astype(jnp.float32)
        if not read.shares:
            compat.join_threads()

        def vector(ref):
            v = compat.load(ref, layout.reduce(2)).astype(jnp.float32)
            return spread(v, shape, (0, 1), layout)

        def step(s, carry):
            slot = lax.rem(s, depth)
            plgpu.barrier_wait(bars.at[slot])
            a, scale = read.at(slot)
            if scale is not None:
                x_s[...] = compat.load(x_s, layout) * vector(scale)
            if read.shares:
                compat.join_threads()  # all read what each has written
            total = jnp.where(column == size, vector(b_s.at[slot]), 0.0)
            for j in range(size):
                left = compat.load(a.at[:, :, j], layout.reduce(2)).astype(jnp.float32)
                right = compat.load(x_s.at[:, j, :], layout.reduce(1))
                total = total + spread(left, shape, (0, 1), layout) * spread(
                    right, shape, (0, 2), layout
                )
            compat.join_threads()  # all have read it
            x_s[...] = total
            # Orders what is written before what is read, and the reads of this slot before the copy
            # that refills it.
            plgpu.commit_smem()

            @pl.when(s + depth < chunk)
            def refill():
                fetch(s + depth, slot)

            return carry

        lax.fori_loop(0, chunk, step, None)
        compat.store(x_s, m_ref, k, samples, row, pl.ds(part * columns, columns))

        @pl.when(part == size // columns)
        def store_vector():
            v_s[...] = compat.load(x_s.at[:, :, size % columns], layout.reduce(2))
            plgpu.commit_smem()
            compat.store(v_s, v_ref, k, samples, row)

        plgpu.wait_smem_to_gmem(0)

    count = length // chunk
    shapes = (
        compat.room((count, batch, size, size), (1, pairs, rows, columns)),
        compat.room((count, batch, size), (1, pairs, rows)),
    )
    out = tuple(jax.ShapeDtypeStruct(each, jnp.float32) for each in shapes)
    scratch = [
        maps.scratch(tile, depth),
        plgpu.SMEM((depth, pairs, rows), b.dtype),
        plgpu.SMEM(shape, jnp.float32),
        plgpu.SMEM((pairs, rows), jnp.float32),
        plgpu.Barrier(num_arrivals=2, num_barriers=depth),
        plgpu.Barrier(num_arrivals=maps.held_arrivals(tile)),
    ]
    grid = {"columns": tile.width // columns, "batch": -(-batch // pairs), "chunk": count}
    run = compat.kernel(body, name=NAME, out=out, grid=grid, scratch=scratch, interpret=interpret)
    m, v = run(*maps.arrays, b)
    return m[:, :batch, :size, :size], v[:, :batch, :size]
