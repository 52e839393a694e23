"""Chunks of a cell's maps to one map each: a thread per pair and a few columns."""

from __future__ import annotations

import functools
import itertools
import operator

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from parscan_bp.kernels import compat, tiles
from parscan_bp.kernels.compat import plgpu
from parscan_bp.kernels.layouts import spread

NAME = "column_reduce"


def column_reduce(w, gates, direct, b, *, chunk: int, reverse: bool = False, interpret=None):
    """The affine map x -> M x + v of every chunk of steps x -> A_t x + b_t.

        A x = E_0 sum_g W_g z_g + D x
        z_gj = sum_s gates_gsj x_sj,   (D x)_sj = sum_r direct_srj x_rj

    for a state of S groups of H units, of which the weights reach the first (E_0). W diag(d) is one
    gate and one group without D.

    X = [M v], a step is X <- A_t X + [0 b_t]. A thread takes a few columns of X through all steps
    in its registers; 128 neighbouring lanes make whole lines of memory. All threads read the same
    number of W at the same time, so one read of shared memory serves a warp. Unit by unit, what
    is read of a step is used at once, and nothing in a step waits for another thread.

    Args:
      w: (G, H, H), float32; the same for all steps.
      gates: (T, G, S, H, N), float32 or bfloat16.
      direct: (T, S, S, H, N) as (to group, from group, unit), or ``None`` for D = 0.
      b: (T, S, H, N).
      chunk: steps per chunk, a divisor of T.
      reverse: whether step t follows step t + 1.
      interpret: see `compat.kernel`.

    Returns:
      [M v] (T / chunk, S H, S H + 1, N) in float32.
    """
    length, states, size, lanes = b.shape
    count, groups, order = length // chunk, lanes // tiles.LANES, states * size
    columns = tiles.columns_of(size, states, count * groups)
    parts = -(-(order + 1) // columns)
    shape = columns, tiles.LANES
    layout = plgpu.Layout.WG_STRIDED(shape, vec_size=1)
    weights = _twice(w)

    def body(w_ref, gates_ref, b_ref, *refs):
        *direct_ref, x_ref, w_s, arrived = refs
        k, group, part = (lax.axis_index(axis) for axis in ("chunk", "lanes", "columns"))
        lane = pl.ds(group * tiles.LANES, tiles.LANES)
        compat.fetch(w_ref, w_s, arrived)
        plgpu.barrier_wait(arrived)
        column = plgpu.broadcasted_iota(jnp.int32, shape, 0, layout=layout) + part * columns
        is_vector = column == order

        def step(s, x):
            t = k * chunk + (chunk - 1 - s if reverse else s)
            # The same numbers lie in both slots. Were they read at the same place in every step,
            # the compiler would read all of W before the loop, into registers that are not there.
            slot = lax.rem(s, 2)

            def read(ref, *index):
                return spread(ref[(t, *index, lane)].astype(jnp.float32), shape, (1,), layout)

            added = [read(b_ref, n // size, n % size) for n in range(order)]
            total = [jnp.where(is_vector, row, 0.0) for row in added]
            for j in range(size):
                entering = x[j::size]
                for g in range(w.shape[0]):
                    products = [read(gates_ref, g, r, j) * v for r, v in enumerate(entering)]
                    z = functools.reduce(operator.add, products)
                    for i in range(size):
                        total[i] += w_s[slot, g, j, i] * z
                for ref in direct_ref:
                    for to, r in itertools.product(range(states), repeat=2):
                        total[to * size + j] += read(ref, to, r, j) * entering[r]
            return total

        first = [jnp.where(column == n, 1.0, 0.0).astype(jnp.float32) for n in range(order)]
        for n, row in enumerate(lax.fori_loop(0, chunk, step, first)):
            x_ref[k, group, part, n] = row

    out = jax.ShapeDtypeStruct((count, groups, parts, order, *shape), jnp.float32)
    scratch = [plgpu.SMEM(weights.shape, jnp.float32), plgpu.Barrier(num_arrivals=1)]
    grid = {"columns": parts, "lanes": groups, "chunk": count}
    run = compat.kernel(body, name=NAME, out=out, grid=grid, scratch=scratch, interpret=interpret)
    x = run(weights, gates, b, *([] if direct is None else [direct]))
    x = x.transpose(0, 3, 2, 4, 1, 5).reshape(count, order, parts * columns, lanes)
    return x[:, :, : order + 1]


def _twice(w):
    """(2, gate, from, to): whole lines of memory, and four neighbours of a row in one read."""
    extra = -w.shape[-1] % 4
    w = jnp.pad(jnp.swapaxes(w, 1, 2), ((0, 0), (0, extra), (0, extra)))
    return jnp.stack([w, w])
