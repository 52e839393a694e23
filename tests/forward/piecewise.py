"""Random recurrences with kinks and jumps: states at, near and across them, and zero states."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.forward.systems import Family

UNITS = 3


def _leaky(y, up, down):
    return jnp.where(y > 0, up * y, down * y)


def _relu(y, up, down):
    return up * jax.nn.relu(y) - down * jax.nn.relu(-y)


def _abs(y, up, down):
    return up * jnp.abs(y) + down * y


def _clip(y, up, down):
    return down * y + (up - down) * jnp.clip(y, 0.0, 1.0)


def _min_max(y, up, down):
    return jnp.maximum(jnp.minimum(up * y, down * y), y - 1)


def _slopes(y, up, down):
    return jnp.where(y > 0, up, down) * y


def _sign(y, up, down):
    return up * y * jnp.sign(y) - down * jnp.abs(y) * (y > 0.5)


def _jump(y, up, down):
    return jnp.where(y > 0, up * y + 0.2, down * y)


def _floor(y, up, down):
    return up * y + down * jnp.floor(8 * y) / 8


def _round(y, up, down):
    return up * y + down * (y - jnp.round(y))


def _whole(y, up, down):
    return up * y + 0.1 * down * (4 * y).astype(jnp.int32).astype(y.dtype)


def _sort(y, up, down):
    return jnp.sort(up * y)[::-1] - 0.5 * down * y


def _largest(y, up, down):
    return up * y - down * jnp.max(y)


def _at_largest(y, up, down):
    k = jnp.argmax(y)
    return down * y + jnp.where(jnp.arange(UNITS) == k, up * y[k], 0.0)


def _cond(y, up, down):
    return lax.cond(y[0] > 0, lambda y: up * y, lambda y: down * y, y)


def _loop(y, up, down):
    """Slopes stopped, within a loop."""

    def turn(a, _):
        return jnp.where(a > 0, jnp.sqrt(up) * lax.stop_gradient(a), jnp.sqrt(down) * a), None

    return lax.scan(turn, y, None, length=2)[0]


@jax.custom_jvp
def _told(y):
    return jnp.maximum(y, 0.0)


@_told.defjvp
def _(primals, tangents):
    """Not its own slope, as of a surrogate."""
    return _told(*primals), 0.1 * tangents[0]


def _surrogate(y, up, down):
    return lax.cond(up[0] > 0, lambda y: up * _told(y) - down * _told(-y), lambda y: y, y)


@jax.jit
def _checkpointed(y, up, down):
    return jax.checkpoint(lambda y: jnp.where(y < 0, down * y, up * y))(y)


BENDS = {
    "leaky": _leaky,
    "relu": _relu,
    "abs": _abs,
    "clip": _clip,
    "min and max": _min_max,
    "slopes": _slopes,
    "sign": _sign,
    "jump": _jump,
    "floor": _floor,
    "round": _round,
    "whole numbers": _whole,
    "sort": _sort,
    "largest": _largest,
    "at the largest": _at_largest,
    "cond": _cond,
    "loop": _loop,
    "surrogate": _surrogate,
    "checkpoint": _checkpointed,
}


def _step(bend, params, h, u):
    w, b = params
    u, up, down = jnp.split(u, 3)
    return jnp.clip(bend(h @ w + b, up, down) + u, -1, 1)


def _draw(key, length):
    """Four kinds: driven ones; such as rest at 0 but for one small kick, or for nothing; and such
    as are set back to it from time to time, and forget for a while on either side."""
    k = jax.random.split(key, 12)
    kind = jax.random.choice(k[0], 4, p=jnp.array([0.35, 0.3, 0.05, 0.3]))
    driven = (kind == 0)[None]
    gains = jnp.exp(jax.random.uniform(k[1], (2, UNITS), float, np.log(0.05), np.log(1.7)))
    w = jnp.eye(UNITS)[jax.random.permutation(k[2], UNITS)]
    mixed = 0.4 * jax.random.normal(k[3], (UNITS, UNITS), float) + 0.5 * w
    w = jnp.where(jax.random.bernoulli(k[4]), mixed, w)
    small = 10 ** jax.random.uniform(k[5], (), float, -18, -3)
    at = jax.random.randint(k[6], (), 0, length)
    kick = jnp.where(jnp.arange(length) == at, small, 0)[:, None] * jax.random.normal(
        k[7], (UNITS,)
    )
    noise = jax.random.normal(k[8], (length, UNITS), float)
    period = jax.random.randint(k[9], (), 24, 100)
    phase = (jnp.arange(length) % period)[:, None]
    reset = jnp.where(phase == 0, jnp.sign(noise[:1]) * 0.5, 0)
    u = jnp.select([kind == 0, kind == 1, kind == 2], [0.3 * noise, kick, 0 * kick], reset)
    slopes = jnp.broadcast_to(gains[:, None], (2, length, UNITS))
    forgets = (kind == 3) & (phase < 16)
    slopes = jnp.where(forgets, 0.42, jnp.where((kind == 3) & (phase == period - 1), 0, slopes))
    b = jnp.where(driven, 0.3, 0) * jax.random.normal(k[10], (UNITS,), float)
    size = jnp.where(jax.random.bernoulli(k[11]), 0.0, jnp.where(kind == 3, 0.5, small))
    h = jnp.where(driven, noise[0], size * jnp.sign(noise[0]))
    return (w, b), h, jnp.concatenate([u, *slopes], axis=1)


PIECEWISE = {name: Family(functools.partial(_step, bend), _draw) for name, bend in BENDS.items()}
