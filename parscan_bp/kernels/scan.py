"""The chunked scan of affine maps, made of the reduce and sweep kernels.

    x_t = A_t x_{t-1} + b_t,  x_{-1} given                    (``reverse``: x_{t+1} for x_{t-1})

Three phases: every chunk is reduced to one map; a vector goes through the chunks' maps, no
product of matrices; every chunk is swept from the state that enters it. The second phase is
the same problem with a step per chunk, so the scan is recursive: *radices* are the steps per
chunk on each level. [C] are three phases, [] is the sequential sweep in one kernel, and
[2, 2, ...] is Algorithm 1 of BPPSA, one level of its tree per kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from parscan_bp.kernels.column_maps import ColumnMaps
from parscan_bp.kernels.factored_maps import FactoredMaps
from parscan_bp.kernels.lanes_reduce import lanes_reduce
from parscan_bp.kernels.lanes_sweep import lanes_sweep
from parscan_bp.kernels.padding import folding, pad_axis, pad_size, pad_steps
from parscan_bp.kernels.tile_maps import Maps
from parscan_bp.kernels.tile_reduce import tile_reduce
from parscan_bp.kernels.tile_sweep import tile_sweep
from parscan_bp.kernels.tiles import MAX_LANES_SIZE, MAX_SIZE, padded_order


def diagonal_scan(a, b, start, *, radices: Sequence[int], reverse: bool = False, interpret=None):
    """x_t = a_t * x_{t-1} + b_t, elementwise.

    Args:
      a, b: (T, N), float32 or bfloat16.
      start: (N,), the state before the first step of the traversal.
      radices: steps per chunk on each level.
      reverse: whether step t follows step t + 1.
      interpret: ``None`` for the GPU, or `compat.interpreter()`.

    Returns:
      x (T, N) in float32.
    """
    x = _lanes_scan(a[:, None, None], b[:, None], start[None], radices, reverse, interpret)
    return x[:, 0]


def dense_scan(a, b, start, *, radices: Sequence[int], reverse: bool = False, interpret=None):
    """x_t = A_t x_{t-1} + b_t with a matrix per step and sample.

    Args:
      a: (T, B, H, H), float32 or bfloat16, H at most `tiles.MAX_SIZE`.
      b: (T, B, H).
      start: (B, H).
      radices, reverse, interpret: see `diagonal_scan`.

    Returns:
      x (T, B, H) in float32.
    """
    size = b.shape[-1]
    check_size(size)
    if size <= MAX_LANES_SIZE:
        a, b = jnp.moveaxis(a, 1, -1), jnp.moveaxis(b, 1, -1)
        x = _lanes_scan(a, b, jnp.moveaxis(start, 0, -1), radices, reverse, interpret)
        return jnp.moveaxis(x, -1, 1)
    matrix = pad_size(pad_size(a, -1), -2)
    return _tile_scan(Maps(matrix), b, start, radices, reverse, interpret)


def weighted_scan(w, d, b, start, *, radices: Sequence[int], reverse: bool = False, interpret=None):
    """x_t = W diag(d_t) x_{t-1} + b_t: W stays on chip, no matrix per step is ever in memory.

    Args:
      w: (H, H), float32 or bfloat16, H at most `tiles.MAX_SIZE`.
      d, b: (T, B, H).
      start: (B, H).
      radices, reverse, interpret: see `diagonal_scan`.

    Returns:
      x (T, B, H) in float32.
    """
    check_size(b.shape[-1])
    maps = Maps(pad_size(pad_size(w, -1), -2), pad_size(d, -1))
    columns = ColumnMaps(w[None], d[:, :, None, None])
    return _tile_scan(maps, b, start, radices, reverse, interpret, columns)


def factored_scan(
    w, gates, direct, b, start, *, radices: Sequence[int], reverse: bool = False, interpret=None
):
    """x_t = A_t x_{t-1} + b_t with the A_t of a gated cell, formed on chip.

        A v = E_0 W u + D v,   u_gh = sum_s gates_gsh v_sh,   (D v)_sh = sum_r direct_srh v_rh

    for a state of S groups of H units, of which W reaches the first (E_0).

    Args:
      w: (H, G H), float32 or bfloat16, with `tiles.factored_fits`.
      gates: (T, B, G, S, H).
      direct: (T, B, S, S, H) as (to group, from group, unit), or ``None`` for D = 0.
      b: (T, B, S, H).
      start: (B, S, H).
      radices, reverse, interpret: see `diagonal_scan`.

    Returns:
      x (T, B, S, H) in float32.
    """
    length, batch, states, size = b.shape
    units = padded_order(size, w.dtype.itemsize)
    order = states * units

    def joined(x):
        x = pad_axis(x.astype(jnp.float32), -1, units - size)
        return x.reshape(*x.shape[:-2], order)

    by_gate = jnp.moveaxis(w.reshape(size, -1, size), 1, 0)
    columns = ColumnMaps(by_gate, gates, direct)
    by_gate = pad_axis(pad_axis(by_gate, -1, units - size), -2, order - size)
    vectors = [joined(gates)]
    offsets: tuple[int, ...] = ()
    if direct is not None:
        offsets = tuple(units * k for k in range(1 - states, states))
        diagonals = [_group_diagonal(direct, k) for k in range(1 - states, states)]
        vectors.append(joined(jnp.stack(diagonals, axis=2)))
    maps = FactoredMaps(jnp.tile(by_gate, states), jnp.concatenate(vectors, axis=2), offsets)
    x = _tile_scan(maps, joined(b), joined(start), radices, reverse, interpret, columns)
    return x.reshape(length, batch, states, units)[..., :size]


def _group_diagonal(direct, k: int):
    """direct[s - k, s] for every s, zero where there is no such group."""
    states = direct.shape[-2]
    zero = jnp.zeros_like(direct[..., 0, 0, :])
    rows = [(s, s - k) for s in range(states)]
    parts = [direct[..., r, s, :] if 0 <= r < states else zero for s, r in rows]
    return jnp.stack(parts, axis=-2)


def check_size(size: int) -> None:
    """Raises where no kernel takes maps of this order."""
    if size > MAX_SIZE:
        raise NotImplementedError(
            f"the GPU kernels take maps of order up to {MAX_SIZE}, this one is {size}; "
            "use Chunked() or Sweep()"
        )


def _tile_scan(maps, b, start, radices, reverse, interpret, columns=None):
    """The scan in tile kernels; ``columns`` are the same maps for the kernel that is faster."""
    how = {"reverse": reverse, "interpret": interpret}

    def reduce(both, b, chunk):
        maps, columns = both
        if columns is None:
            m, v = tile_reduce(maps, b, chunk=chunk, **how)
        else:
            m, v = columns.reduce(b, chunk, **how)
        return (Maps(m), None), v

    def sweep(both, b, enter, chunk):
        return tile_sweep(both[0], b, enter, chunk=chunk, **how)

    def pad(both, steps):
        return tuple(
            None if each is None else each.map_steps(lambda x: pad_steps(x, steps, reverse))
            for each in both
        )

    size = b.shape[-1]
    b = pad_size(b, -1)
    start = pad_axis(start.astype(jnp.float32), -1, b.shape[-1] - size)
    both = maps, columns if columns is not None and columns.fit else None
    return _levels(reduce, sweep, pad, both, b, start, list(radices), reverse)[..., :size]


def _lanes_scan(a, b, start, radices, reverse, interpret):
    how = {"reverse": reverse, "interpret": interpret}

    def reduce(a, b, chunk):
        fold, unfold = folding(b, chunk)
        m, v = lanes_reduce(fold(a), fold(b), chunk=chunk, **how)
        return unfold(m, 1), unfold(v, 1)

    def sweep(a, b, enter, chunk):
        fold, unfold = folding(b, chunk)
        x = lanes_sweep(fold(a), fold(b), fold(enter, 1), chunk=chunk, **how)
        return unfold(x)

    def pad(a, steps):
        return pad_steps(a, steps, reverse)

    return _levels(reduce, sweep, pad, a, b, start.astype(jnp.float32), list(radices), reverse)


def _levels(
    reduce: Callable, sweep: Callable, pad: Callable, maps: Any, b, start, radices, reverse
):
    length = b.shape[0]
    if not radices or length <= radices[0]:
        return sweep(maps, b, start[None], length)
    chunk, *rest = radices
    extra = -length % chunk
    # Zero maps at the end of the traversal: no state before them depends on them.
    maps, b = pad(maps, extra), pad_steps(b, extra, reverse)
    chunk_maps, v = reduce(maps, b, chunk)
    leaving = _levels(reduce, sweep, pad, chunk_maps, v, start, rest, reverse)
    if reverse:
        enter = jnp.concatenate([leaving[1:], start[None]])
        return sweep(maps, b, enter, chunk)[extra:]
    enter = jnp.concatenate([start[None], leaving[:-1]])
    return sweep(maps, b, enter, chunk)[:length]
