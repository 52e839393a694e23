"""Random compositions of primitives into a step, for `test_random_steps.py`.

A program is a list of instructions (operation, operand, operand, number). It grows a pool of
values from the carry leaves and the inputs; what does not apply to the shapes drawn is skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

CARRIES = (
    ((2, 3),),
    ((3, 3),),
    ((2, 2, 3),),
    ((2, 3), (2,)),
    ((2, 3), (3, 2)),
    ((2, 3), (2, 3)),
    ((3,), ()),
)

Instruction = tuple[int, int, int, int]


@jax.custom_jvp
def leaky(a):
    return jnp.tanh(a)


@leaky.defjvp
def _(primals, tangents):
    return leaky(*primals), tangents[0] + 0.1 * tangents[0].sum(0)


def matrix(n: int) -> np.ndarray:
    return np.random.default_rng(n).normal(size=(n, n)) / n


def along(f: Callable) -> Callable:
    """`f(a, axis)` for arrays that have an axis."""
    return lambda a, k: f(a, k % a.ndim) if a.ndim else None


def scan_along(a, axis):
    rows = jnp.moveaxis(a, axis, 0)
    _, ys = lax.scan(lambda s, row: (s + jnp.sin(row), s * row), jnp.ones(rows.shape[1:]), rows)
    return jnp.moveaxis(ys, 0, axis)


def map_along(a, axis):
    return lax.map(lambda row: jnp.cos(row) * row.sum(), jnp.moveaxis(a, axis, 0))


def shrink(a, axis):
    """A part along one axis, put back by broadcasting it or by doubling it."""
    part = lax.slice_in_dim(a, 0, 1, axis=axis)
    return a * part


UNARY: tuple[Callable[[Any, int], Any], ...] = (
    lambda a, k: jnp.sin(a),
    lambda a, k: jnp.tanh(a) * (k + 1),
    lambda a, k: a * a,
    lambda a, k: jnp.where(a > 0, a, 0.1 * a),
    lambda a, k: a - lax.stop_gradient(a.mean()),
    lambda a, k: jax.jit(jnp.cos)(a),
    lambda a, k: jax.checkpoint(lambda v: jnp.exp(-v * v))(a),
    lambda a, k: jax.nn.relu(a),
    lambda a, k: lax.complex(a, 2 * a).imag,
    lambda a, k: a.ravel(),
    lambda a, k: a.reshape(a.shape[::-1]),
    lambda a, k: jnp.transpose(a),
    lambda a, k: a.reshape((-1, *a.shape[2:])) if a.ndim > 1 else None,
    lambda a, k: jnp.expand_dims(a, k % (a.ndim + 1)) if a.ndim < 3 else None,
    lambda a, k: a.squeeze(),
    lambda a, k: lax.cond(a.sum() > 0, jnp.sin, lambda v: v * v, a),
    lambda a, k: lax.cond(a.sum() > 0, lambda v: v - v.mean(), jnp.cos, a),
    lambda a, k: lax.fori_loop(0, 2, lambda i, v: jnp.sin(v) + i, a),
    lambda a, k: lax.while_loop(lambda v: v.sum() > 100, lambda v: v / 2, a),
    lambda a, k: leaky(a) if a.ndim else None,
    lambda a, k: jax.vmap(leaky)(a) if a.ndim > 1 else None,
    lambda a, k: a[None][0] if k % 2 else lax.optimization_barrier((a, a * 2))[1],
    along(lambda a, axis: jax.nn.softmax(a, axis=axis)),
    along(lambda a, axis: jnp.cumsum(a, axis)),
    along(lambda a, axis: jnp.flip(a, axis)),
    along(lambda a, axis: jnp.roll(a, 1, axis)),
    along(lambda a, axis: jnp.sort(a, axis)),
    along(lambda a, axis: a.sum(axis)),
    along(lambda a, axis: a - a.mean(axis, keepdims=True)),
    along(lambda a, axis: a.max(axis)),
    along(lambda a, axis: a + a.prod(axis, keepdims=True)),
    along(shrink),
    along(lambda a, axis: jnp.moveaxis(a, axis, 0)),
    along(lambda a, axis: jnp.tensordot(a, matrix(a.shape[axis]), (axis, 0))),
    along(
        lambda a, axis: jnp.moveaxis(jnp.moveaxis(a, axis, -1) @ matrix(a.shape[axis]), -1, axis)
    ),
    along(lambda a, axis: jnp.take(a, np.zeros(a.shape[axis], int), axis)),
    along(lambda a, axis: jnp.moveaxis(jnp.moveaxis(a, axis, 0).at[0].set(0.3), 0, axis)),
    along(lambda a, axis: jnp.take_along_axis(a, jnp.argsort(a, axis), axis)),
    along(lambda a, axis: jnp.concatenate([a, a], axis)),
    along(lambda a, axis: lax.slice_in_dim(a, 0, max(1, a.shape[axis] // 2), axis=axis)),
    along(lambda a, axis: jnp.fft.fft(a, axis=axis).real),
    along(lambda a, axis: jnp.stack(jnp.unstack(a, axis=axis)[::-1], axis)),
    along(lambda a, axis: jnp.repeat(a, 2, axis)),
    along(scan_along),
    along(map_along),
    along(lambda a, axis: lax.associative_scan(jnp.multiply, a, axis=axis)),
    along(lambda a, axis: lax.cumlogsumexp(a, axis)),
)


def _broadcasting(f: Callable) -> Callable:
    def apply(a, b, k):
        shape = np.broadcast_shapes(a.shape, b.shape)
        return f(a, b) if len(shape) <= 3 else None

    return apply


def _same(f: Callable) -> Callable:
    return lambda a, b, k: f(a, b, k) if a.shape == b.shape else None


def _rows(f: Callable) -> Callable:
    return lambda a, b, k: f(a, b) if a.ndim and a.shape[1:] == b.shape else None


BINARY: tuple[Callable[[Any, Any, int], Any], ...] = (
    _broadcasting(jnp.add),
    _broadcasting(jnp.multiply),
    _broadcasting(jnp.maximum),
    _broadcasting(lambda a, b: jnp.where(a > b, a, jnp.sin(b))),
    _broadcasting(lambda a, b: jnp.arctan2(a, 2 + b * b)),
    lambda a, b, k: a @ b,
    lambda a, b, k: jnp.einsum("bi,bij->bj", a, b),
    lambda a, b, k: jnp.einsum("bi,bi->b", a, b),
    lambda a, b, k: jnp.outer(a, b) if a.size * b.size < 20 else None,
    _same(lambda a, b, k: lax.select(k % 2 == 0, a, b)),
    _same(lambda a, b, k: lax.cond(a.sum() > 0, lambda: a, lambda: b)),
    _same(lambda a, b, k: jnp.stack([a, b], k % (a.ndim + 1)).sum(k % (a.ndim + 1))),
    _same(lambda a, b, k: jnp.concatenate([a[:1], b[1:]]) if a.ndim else None),
    _same(lambda a, b, k: lax.dynamic_update_slice(a, b[:1], (k,) + (0,) * (a.ndim - 1))),
    _same(lambda a, b, k: a.at[np.zeros(len(a), int)].add(b)),
    _same(lambda a, b, k: lax.fori_loop(0, 3, lambda i, s: (s[1] * 0.5, jnp.sin(s[0])), (a, b))[0]),
    _same(lambda a, b, k: jax.vmap(lambda u, v: u * v.sum())(a, b) if a.ndim else None),
    _rows(lambda a, b: lax.scan(lambda s, row: (s * row, s + row), b, a)[1]),
    _rows(lambda a, b: lax.scan(lambda s, row: (s * row, s + row), b, a)[0]),
    _rows(lambda a, b: lax.map(lambda row: row * b, a)),
)


def build(shapes: tuple[tuple[int, ...], ...], program: list[Instruction], picks: list[int]):
    """The step `(carry tuple, x) -> (carry tuple, None)` of a program."""

    def step(carry, x):
        pool = [*carry, x]
        for operation, i, j, k in program:
            value = _apply(operation, pool[i % len(pool)], pool[j % len(pool)], k)
            if value is not None and value.size <= 40 and value.ndim <= 3:
                pool.append(value)
        outs = []
        for shape, pick in zip(shapes, picks, strict=False):
            # The latest values come first, so that programs are seldom thrown away.
            fitting = [value for value in reversed(pool) if value.shape == shape]
            outs.append(fitting[pick % min(2, len(fitting))] + 0.0)
        return tuple(outs), None

    return step


def _apply(operation: int, a, b, k: int):
    operation %= len(UNARY) + len(BINARY)
    try:
        if operation < len(UNARY):
            return UNARY[operation](a, k)
        return BINARY[operation - len(UNARY)](a, b, k)
    except (IndexError, TypeError, ValueError):  # the shapes do not fit
        return None
