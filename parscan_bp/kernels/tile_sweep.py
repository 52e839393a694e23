"""A vector through chunks of maps: a warpgroup per few pairs."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from parscan_bp.kernels import compat, tiles
from parscan_bp.kernels.compat import from_zero, plgpu
from parscan_bp.kernels.layouts import spread, vector_layout
from parscan_bp.kernels.rounds import StepRounds
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
    count, instances = length // chunk, -(-batch // pairs)
    needs = maps.step_bytes(tile), maps.held_bytes(tile)
    steps = tiles.sweep_steps(*needs, chunk, count, count * instances)
    rounds = StepRounds(chunk, min(steps, chunk), reverse)

    def body(*refs):
        *map_refs, b_ref, enter_ref, x_ref, map_s, b_s, x_s, bars, first_bar, held_bar = refs
        k, zero = lax.axis_index("chunk"), lax.axis_index("batch")
        samples, row = pl.ds(zero * pairs, pairs), from_zero(zero, rows)
        read = maps.reader(tile, map_refs, map_s, samples, zero)

        def fetch(n):
            times, places = rounds.times(n, k * chunk), rounds.places(n)
            bar = bars.at[rounds.half(n)]
            read.fetch(times, places, bar)
            compat.fetch(b_ref.at[times, samples, row], b_s.at[places], bar)

        for n in range(min(2, rounds.count)):
            fetch(jnp.int32(n))
        # The state before the first step lies where one before it would have put its own.
        start = rounds.place(rounds.before(rounds.first))
        compat.fetch(enter_ref.at[k, samples, row], x_s.at[start], first_bar)
        read.fetch_held(held_bar)
        plgpu.barrier_wait(first_bar)

        def vector(ref):
            v = compat.load(ref.at[:, pl.ds(0, size)], layout.reduce(1)).astype(jnp.float32)
            return spread(v, shape, (0, 2), layout)

        def step(n, nth, carry):
            t = rounds.nth(n, nth)
            place = rounds.place(t)
            a, scale = read.at(place)
            x = vector(x_s.at[rounds.place(rounds.before(t))])
            if scale is not None:
                x = x * vector(scale)
            matrix = compat.load(a.at[:, :, pl.ds(0, size)], layout).astype(jnp.float32)
            b_t = compat.load(b_s.at[place], layout.reduce(2)).astype(jnp.float32)
            x_s[place] = jnp.sum(matrix * x, axis=2) + b_t
            if rounds.steps > 1:  # else what orders copies does that, too
                compat.join_threads()
            return carry

        def take(n, carry):
            plgpu.barrier_wait(bars.at[rounds.half(n)])
            plgpu.wait_smem_to_gmem(1, wait_read_only=True)  # what lay here has left
            lax.fori_loop(0, rounds.taken(n), functools.partial(step, n), None)
            plgpu.commit_smem()
            times = rounds.times(n, k * chunk)
            compat.store(x_s.at[rounds.places(n)], x_ref, times, samples, row)

            @pl.when(n + 2 < rounds.count)
            def refill():
                fetch(n + 2)

            return carry

        lax.fori_loop(0, rounds.count, take, None)
        plgpu.wait_smem_to_gmem(0)

    out = jax.ShapeDtypeStruct(compat.room(b.shape, (rounds.steps, pairs, rows)), jnp.float32)
    scratch = [
        maps.scratch(tile, rounds.room),
        plgpu.SMEM((rounds.room, pairs, rows), b.dtype),
        plgpu.SMEM((rounds.room, pairs, rows), jnp.float32),
        plgpu.Barrier(num_arrivals=2, num_barriers=2),
        plgpu.Barrier(num_arrivals=1),
        plgpu.Barrier(num_arrivals=maps.held_arrivals(tile)),
    ]
    grid = {"batch": instances, "chunk": count}
    how = {"grid": grid, "scratch": scratch, "interpret": interpret}
    run = compat.kernel(body, name=NAME, out=out, **how)
    return run(*maps.arrays, b, enter)[:length, :batch, :size]
