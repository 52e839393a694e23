"""The kernels in plain JAX, with their signatures: what every kernel is compared with.

They compute in the dtype of their operands, float64 included, and run on any device.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from parscan_bp.kernels.factored_maps import FactoredMaps
from parscan_bp.kernels.rule import Rule
from parscan_bp.kernels.tile_maps import Maps
from parscan_bp.originals import lax_scan


def lanes_reduce(a, b, *, chunk: int, reverse: bool = False, interpret=None):
    """See `parscan_bp.kernels.lanes_reduce`."""
    del interpret
    m, v = _reduce(jnp.moveaxis(a, -1, 1), jnp.moveaxis(b, -1, 1), chunk, reverse)
    return jnp.moveaxis(m, 1, -1), jnp.moveaxis(v, 1, -1)


def lanes_sweep(a, b, enter, *, chunk: int, reverse: bool = False, interpret=None):
    """See `parscan_bp.kernels.lanes_sweep`."""
    del interpret
    a, b, enter = (jnp.moveaxis(x, -1, 1) for x in (a, b, enter))
    return jnp.moveaxis(_sweep(a, b, enter, chunk, reverse), 1, -1)


def column_reduce(w, gates, direct, b, *, chunk: int, reverse: bool = False, interpret=None):
    """See `parscan_bp.kernels.column_reduce`."""
    del interpret
    length, states, size, lanes = b.shape
    a = jnp.zeros((length, lanes, states, size, states, size), b.dtype)
    entering = jnp.einsum("gij,tgsjn->tnisj", w, gates, precision=lax.Precision.HIGHEST)
    a = a.at[:, :, 0].add(entering)
    if direct is not None:
        a = a + jnp.einsum("tsrjn,ij->tnsirj", direct, jnp.eye(size, dtype=b.dtype))
    order = states * size
    a, b = a.reshape(length, lanes, order, order), b.reshape(length, order, lanes)
    m, v = _reduce(a, jnp.moveaxis(b, -1, 1), chunk, reverse)
    return jnp.moveaxis(jnp.concatenate([m, v[..., None]], axis=-1), 1, -1)


def tile_reduce(maps: Maps, b, *, chunk: int, reverse: bool = False, interpret=None):
    """See `parscan_bp.kernels.tile_reduce`."""
    del interpret
    return _reduce(_matrices(maps), b, chunk, reverse)


def tile_sweep(maps: Maps, b, enter, *, chunk: int, reverse: bool = False, interpret=None):
    """See `parscan_bp.kernels.tile_sweep`."""
    del interpret
    return _sweep(_matrices(maps), b, enter, chunk, reverse)


def recurrence(rule: Rule, v, weights, first, *, reverse: bool = False, interpret=None):
    """See `parscan_bp.kernels.recurrence`."""
    del interpret

    def step(carry, v):
        out, state = carry
        # weights (operand, product, i, j) times operands (operand, sample, j).
        operands = jnp.stack(out[: rule.operands])
        y = jnp.einsum("kpij,kbj->pbi", weights, operands, precision=lax.Precision.HIGHEST)
        out, state, *h = rule.step([v[:, n] for n in range(rule.inputs)], list(y), state)
        return (list(out), list(state)), (jnp.stack(out, 1), *h)

    vectors = [first[:, n] for n in range(first.shape[1])]
    carry = vectors[: rule.outputs], vectors[rule.outputs : rule.outputs + rule.states]
    _, (out, *h) = lax_scan(step, carry, v, reverse=reverse)
    if not rule.sums:
        return out, None
    # h of a step goes with the operands before it, the last operands with the h that is left.
    order = -1 if reverse else 1
    hs = jnp.concatenate([*h, first[None, :, -1]][::order])
    operands = jnp.concatenate([x[:, :, : rule.operands] for x in (first[None], out)][::order])
    products = jnp.einsum("tbi,tbkj->kij", hs, operands, precision=lax.Precision.HIGHEST)
    return out, (products, out[:, :, : rule.sums].sum((0, 1)))


def _matrices(maps):
    if isinstance(maps, FactoredMaps):
        d, e = maps.vectors[:, :, : maps.gates], maps.vectors[:, :, maps.gates :]
        total = jnp.einsum("gij,tbgj->tbij", maps.weights, d, precision=lax.Precision.HIGHEST)
        for k, offset in enumerate(maps.offsets):
            eye = jnp.eye(d.shape[-1], k=offset, dtype=d.dtype)
            total = total + eye * e[:, :, k, None, :]
        return total
    return maps.matrix if maps.d is None else maps.matrix * maps.d[..., None, :]


def _reduce(a, b, chunk, reverse):
    def step(total, t):
        (m, v), (a, b) = total, t
        return (_product(a, m), _apply(a, v) + b), None

    steps = _by_position(a, chunk), _by_position(b, chunk)
    v = jnp.zeros_like(steps[1][0])
    m = jnp.broadcast_to(jnp.eye(b.shape[-1], dtype=b.dtype), (*v.shape, b.shape[-1]))
    return lax_scan(step, (m, v), steps, reverse=reverse)[0]


def _sweep(a, b, enter, chunk, reverse):
    def step(x, t):
        a, b = t
        x = _apply(a, x) + b
        return x, x

    steps = _by_position(a, chunk), _by_position(b, chunk)
    _, x = lax_scan(step, enter, steps, reverse=reverse)
    return jnp.swapaxes(x, 0, 1).reshape(b.shape)


def _by_position(x, chunk):
    """(T, ...) -> (chunk, T / chunk, ...): the position inside a chunk leads."""
    return jnp.swapaxes(x.reshape(-1, chunk, *x.shape[1:]), 0, 1)


def _product(a, m):
    return jnp.matmul(a, m, precision=lax.Precision.HIGHEST)


def _apply(a, x):
    return _product(a, x[..., None])[..., 0]
