"""Recurrences that contract, that are neutral and that are chaotic, of rows and of pytrees."""

import jax
import jax.numpy as jnp
import numpy as np

from parscan_bp.forward import Recurrence
from tests.quickly import jit_quickly

ROWS, UNITS = 2, 3


def draw(seed, *shape, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def elman(n, gain=0.5, dtype=jnp.float32):
    """tanh(h W + u); its weights contract for gains below about 1."""
    w = gain * draw(1, UNITS, UNITS, dtype=dtype)
    step = lambda h, u: jnp.tanh(h @ w + u)  # noqa: E731
    return Recurrence(step, draw(2, ROWS, UNITS, dtype=dtype), draw(3, n, ROWS, UNITS), n)


def gru(n, dtype=jnp.float32):
    """The cell with its reset gate before the product."""
    w, v = draw(4, UNITS, 2 * UNITS, dtype=dtype), draw(5, UNITS, UNITS, dtype=dtype)

    def step(h, u):
        r, z = jnp.split(jax.nn.sigmoid(h @ w + u[..., : 2 * UNITS]), 2, -1)
        return (1 - z) * jnp.tanh((r * h) @ v + u[..., 2 * UNITS :]) + z * h

    inputs = draw(6, n, ROWS, 3 * UNITS, dtype=dtype)
    return Recurrence(step, jnp.tanh(draw(7, ROWS, UNITS, dtype=dtype)), inputs, n)


def lstm(n, dtype=jnp.float32):
    """A carry of two leaves, whose second is elementwise in itself."""
    w = 0.5 * draw(8, UNITS, 4 * UNITS, dtype=dtype)

    def step(carry, u):
        a = carry["h"] @ w + u
        i, f, o = jnp.split(jax.nn.sigmoid(a[..., : 3 * UNITS]), 3, -1)
        c = f * carry["c"] + i * jnp.tanh(a[..., 3 * UNITS :])
        return {"h": o * jnp.tanh(c), "c": c}

    zero = jnp.zeros((ROWS, UNITS), dtype)
    inputs = draw(9, n, ROWS, 4 * UNITS, dtype=dtype)
    return Recurrence(step, {"h": zero, "c": zero}, inputs, n)


def lorenz(n, rho=28.0, dtype=jnp.float32):
    """One step of Runge and Kutta's of 0.02 time units; chaotic from rho = 24.74 on."""

    def field(x):
        a, b, c = x
        return jnp.stack([10 * (b - a), a * (rho - c) - b, a * b - 8 / 3 * c])

    def step(x, u):
        k1 = field(x)
        k2 = field(x + 0.01 * k1)
        k3 = field(x + 0.01 * k2)
        k4 = field(x + 0.02 * k3)
        return x + 0.02 / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

    return Recurrence(step, jnp.ones(3, dtype), None, n)


def two_wells(n, dtype=jnp.float32):
    """Overdamped Langevin dynamics in a double well, elementwise."""
    step = lambda x, u: x - 0.2 * (x**3 - x) + 0.1 * u  # noqa: E731
    return Recurrence(step, draw(10, 4, dtype=dtype), draw(11, n, 4, dtype=dtype), n)


def growth(n):
    """A logistic growth that is disturbed, elementwise: slope 1.3 at first, 0.7 at the end."""
    step = lambda x, u: x + 0.3 * x * (1 - x) * (1 + 0.1 * u)  # noqa: E731
    wave = jnp.sin(jnp.arange(2 * n, dtype=jnp.float32)).reshape(n, 2)
    return Recurrence(step, jnp.asarray([0.01, 0.3], jnp.float32), wave, n)


CALM = {"elman": elman, "gru": gru, "lstm": lstm, "two wells": two_wells}


def sequential(recurrence, jit=jit_quickly):
    """x_1..x_n by `jax.lax.scan`."""

    def step(carry, u):
        new = recurrence.step(carry, u)
        return new, new

    return jit(lambda init, inputs: jax.lax.scan(step, init, inputs, length=recurrence.length)[1])(
        recurrence.init, recurrence.inputs
    )


def evaluated(method, recurrence, tolerance=1e-6, jit=jit_quickly):
    """What a method makes of a recurrence, compiled.

    Without optimisation, f has other bits where it is compiled by itself: not where bits count.
    """

    def run(init, inputs):
        own = Recurrence(recurrence.step, init, inputs, recurrence.length)
        return method.evaluate(own, tolerance)

    return jit(run)(recurrence.init, recurrence.inputs)


def check_close(got, want, atol=1e-5):
    """Entry by entry, leaf by leaf."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=0, atol=atol)
