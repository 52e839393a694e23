"""Random recurrences from contracting to chaotic, and what is known of each by other means."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Step = Callable[[Any, jax.Array, jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True)
class Family:
    """Systems of one kind.

    Attributes:
      step: ``(params, carry, input) -> carry``; a carry is one array.
      draw: ``(key, length) -> (params, first carry, inputs)``, in float64.
    """

    step: Step
    draw: Callable[[jax.Array, int], tuple[Any, jax.Array, jax.Array]]


def _elman(params, h, u):
    w, b = params
    return jnp.tanh(h @ w + u + b)


def _gru(params, h, u):
    w, b = params
    n = h.shape[-1]
    a = u + b
    r, z = jnp.split(jax.nn.sigmoid(h @ w[:, : 2 * n] + a[: 2 * n]), 2)
    c = jnp.tanh(a[2 * n :] + (r * h) @ w[:, 2 * n :])
    return (1 - z) * c + z * h


def _lstm(params, state, u):
    w, b = params
    h, c = jnp.split(state, 2)
    i, f, o, g = jnp.split(h @ w + u + b, 4)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jnp.concatenate([jax.nn.sigmoid(o) * jnp.tanh(c), c])


def _lorenz(params, h, u):
    """A step of Runge and Kutta."""
    rho, dt = params

    def v(h):
        x, y, z = h
        return jnp.stack([10 * (y - x), x * (rho - z) - y, x * y - 8 / 3 * z])

    a = v(h)
    b = v(h + dt / 2 * a)
    c = v(h + dt / 2 * b)
    return h + dt / 6 * (a + 2 * b + 2 * c + v(h + dt * c)) + u


def _two_wells(params, h, u):
    """Overdamped motion with noise in two wells, of a coupled pair."""
    a, noise = params
    return h - a * (h**3 - h) + 0.02 * a * (2 - a) * (h[::-1] - h) + noise * u


def _uniform(key, low, high):
    return jax.random.uniform(key, (), float, low, high)


def _draw_net(gates: int, gains, gate_bias, key, length, n=8):
    k = jax.random.split(key, 6)
    gain = jnp.exp(_uniform(k[0], *np.log(gains)))
    w = gain / np.sqrt(n) * jax.random.normal(k[1], (n, gates * n), float)
    b = 0.1 * jax.random.normal(k[2], (gates * n,), float)
    if gate_bias is not None:
        b = b.at[n : 2 * n].add(_uniform(k[5], *gate_bias))
    h = jnp.tanh(jax.random.normal(k[3], (2 * n if gates == 4 else n,), float))
    scale = _uniform(k[5], 0.05, 0.5)
    return (w, b), h, scale * jax.random.normal(k[4], (length, gates * n), float)


def _draw_trained(gates: int, key, length):
    """A cell that was trained to keep a leaky sum of its inputs, which it did not at first."""
    (w, b), h, us = _draw_net(gates, (0.5, 1.5), None, key, length)
    step = _gru if gates == 3 else _lstm
    short = us[: min(length, 64)]

    def leaky(total, u):
        total = 0.9 * total + u
        return total, jnp.tanh(total)

    wanted = lax.scan(leaky, jnp.zeros((), float), short[:, 0])[1]

    def loss(params):
        return jnp.mean((sequential(step, params, h, short)[:, 0] - wanted) ** 2)

    def descend(_, params):
        slopes = jax.grad(loss)(params)
        size = jnp.sqrt(sum(jnp.sum(g**2) for g in slopes)) + 1e-3
        return jax.tree.map(lambda p, g: p - 0.03 * g / size, params, slopes)

    return lax.fori_loop(0, TRAINING, descend, (w, b)), h, us


TRAINING = 200
"""Steps of gradient descent."""


def _draw_lorenz(key, length):
    k = jax.random.split(key, 3)
    h = jax.random.normal(k[2], (3,), float) + 1
    return (_uniform(k[0], 2, 45), _uniform(k[1], 0.01, 0.05)), h, jnp.zeros((length, 3), float)


def _draw_wells(key, length):
    k = jax.random.split(key, 4)
    a = _uniform(k[0], 0.05, 1.98)
    noise = _uniform(k[1], 0, 0.08) * (2 - a)
    u = jnp.clip(jax.random.normal(k[3], (length, 2), float), -1, 1)
    return (a, noise), 0.5 * jax.random.normal(k[2], (2,), float), u


FAMILIES = {
    "elman": Family(_elman, functools.partial(_draw_net, 1, (0.13, 8), None)),
    "gru": Family(_gru, functools.partial(_draw_net, 3, (0.5, 20), (-3, 1.5))),
    "lstm": Family(_lstm, functools.partial(_draw_net, 4, (0.3, 12), (-2, 2))),
    "lorenz": Family(_lorenz, _draw_lorenz),
    "two wells": Family(_two_wells, _draw_wells),
}


TRAINED = {
    "trained gru": Family(_gru, functools.partial(_draw_trained, 3)),
    "trained lstm": Family(_lstm, functools.partial(_draw_trained, 4)),
}


def drawn(family: Family, seed: int, count: int, length: int):
    """So many systems, stacked, in float64."""
    keys = jax.random.split(jax.random.key(seed), count)
    return jax.vmap(lambda key: family.draw(key, length))(keys)


def sequential(step: Step, params, h, us):
    """x_1..x_n."""
    return lax.scan(lambda h, u: (h := step(params, h, u), h), h, us)[1]


def exponent(step: Step, params, h, us):
    """The largest Lyapunov exponent, per step."""

    def one(values, u):
        h, v, total = values
        h, v = jax.jvp(lambda h: step(params, h, u), (h,), (v,))
        size = jnp.linalg.norm(v) + 1e-300
        return (h, v / size, total + jnp.log(size)), None

    v = jnp.ones_like(h) / np.sqrt(h.size)
    return lax.scan(one, (h, v, jnp.zeros((), h.dtype)), us)[0][2] / len(us)


def spread(step: Step, params, h, us, draws=32):
    """How far apart sequential runs are whose steps are rounded otherwise: by a unit in the last
    place, upwards, downwards or not at all, at random. Relative to 1 + the largest carry."""
    eps = jnp.finfo(h.dtype).eps

    def run(key):
        def stirred(h, inputs):
            u, key = inputs
            h = step(params, h, u)
            units = jax.random.randint(key, h.shape, -1, 2).astype(h.dtype)
            h = h + units * eps * jnp.abs(h)
            return h, h

        return lax.scan(stirred, h, (us, jax.random.split(key, len(us))))[1]

    runs = jax.vmap(run)(jax.random.split(jax.random.key(7), draws))
    apart = jnp.max(runs, 0) - jnp.min(runs, 0)
    return jnp.max(apart) / (1 + jnp.max(jnp.abs(runs)))
