"""The smooth steps of the test family: recurrent cells, linear systems, ODE and filter steps.

Every builder takes `(draw, n)` and returns `Parts(f, params, init, xs)` with `xs` of length `n`.
Gains are modest (no step is chaotic over the lengths used), so a derivative is worth comparing.
Sizes differ on purpose from step to step.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from parscan_bp.conformance.problem import Draw, PyTree, StepFunction


class Parts(NamedTuple):
    """A problem before it is called: `f(params, carry, x)` and its arguments."""

    f: StepFunction
    params: PyTree
    init: PyTree
    xs: PyTree


def elman(draw: Draw, n: int) -> Parts:
    """h' = tanh(W h + U x + b)."""

    def f(p, h, x):
        h = jnp.tanh(p["W"] @ h + p["U"] @ x + p["b"])
        return h, h

    params = {"W": draw.weights(4, 4), "U": draw.weights(4, 3), "b": draw(4, scale=0.1)}
    return Parts(f, params, draw(4), draw(n, 3))


def elman_batch_first(draw: Draw, n: int) -> Parts:
    """The same with rows: carry (B, H)."""

    def f(p, h, x):
        h = jnp.tanh(h @ p[0] + x @ p[1])
        return h, h[..., :2]

    return Parts(f, (draw.weights(3, 3), draw.weights(2, 3)), draw(2, 3), draw(n, 2, 2))


def elman_batch_last(draw: Draw, n: int) -> Parts:
    """The batch last in the carry, first in x: carry (H, B), x (B, D)."""

    def f(p, h, x):
        h = jnp.tanh(p[0] @ h + (x @ p[1]).T)
        return h, h.sum(axis=0)

    return Parts(f, (draw.weights(3, 3), draw.weights(2, 3)), draw(3, 2), draw(n, 2, 2))


def gru(draw: Draw, n: int) -> Parts:
    """The GRU, with rows."""

    def f(p, h, x):
        z = jax.nn.sigmoid(h @ p["Wz"] + x @ p["Uz"])
        r = jax.nn.sigmoid(h @ p["Wr"] + x @ p["Ur"])
        candidate = jnp.tanh((r * h) @ p["Wh"] + x @ p["Uh"])
        h = (1 - z) * h + z * candidate
        return h, h

    params = {f"W{gate}": draw.weights(3, 3) for gate in "zrh"}
    params |= {f"U{gate}": draw.weights(2, 3) for gate in "zrh"}
    return Parts(f, params, draw(2, 3), draw(n, 2, 2))


def lstm(draw: Draw, n: int) -> Parts:
    """The LSTM: a tuple carry, gates in one product."""

    def f(p, carry, x):
        h, c = carry
        i, g, forget, o = jnp.split(p["W"] @ jnp.concatenate([h, x]) + p["b"], 4)
        c = jax.nn.sigmoid(forget + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    params = {"W": draw.weights(12, 5), "b": draw(12, scale=0.1)}
    return Parts(f, params, (draw(3), draw(3)), draw(n, 2))


def min_gru(draw: Draw, n: int) -> Parts:
    """minGRU: gates of the input alone, so the Jacobian is diagonal and does not depend on h."""

    def f(p, h, x):
        z = jax.nn.sigmoid(x @ p[0])
        h = (1 - z) * h + z * (x @ p[1])
        return h, h

    return Parts(f, (draw.weights(2, 4), draw.weights(2, 4)), draw(4), draw(n, 2))


def lru(draw: Draw, n: int) -> Parts:
    """The linear recurrent unit: complex diagonal state, real output."""

    def f(p, h, x):
        decay = jnp.exp(-jnp.exp(p["nu"]) + 1j * p["theta"])
        h = decay * h + p["B"] @ x
        return h, (p["C"] @ h).real + p["D"] * x[:2]

    params = {
        "nu": draw(3, scale=0.3, shift=-1),
        "theta": draw(3),
        "B": draw.complex(3, 2, scale=0.5),
        "C": draw.complex(2, 3, scale=0.5),
        "D": draw(2),
    }
    return Parts(f, params, draw.complex(3), draw(n, 2))


def complex_conjugate(draw: Draw, n: int) -> Parts:
    """Not holomorphic: conj, abs and the real part act on a complex carry."""

    def f(p, c, x):
        c = p[0] * jnp.conj(c) / (1 + jnp.abs(c)) + x
        return c, (jnp.abs(c), c.real * p[1], jnp.conj(c))

    return Parts(f, (draw.complex(3, scale=0.5), draw(3)), draw.complex(3), draw.complex(n, 3))


def lorenz(draw: Draw, n: int) -> Parts:
    """An explicit Euler step of the Lorenz system, short enough to stay predictable."""

    def f(p, c, dt):
        x, y, z = c[0], c[1], c[2]
        slope = jnp.stack([p["sigma"] * (y - x), x * (p["rho"] - z) - y, x * y - p["beta"] * z])
        c = c + dt * slope
        return c, {"state": c, "speed": jnp.sum(slope**2)}

    params = {"sigma": draw(shift=10), "rho": draw(shift=28), "beta": draw(shift=2.7, scale=0.1)}
    return Parts(f, params, draw(3, shift=1), np.abs(draw(n, scale=0.002, shift=0.005)))


def linear(draw: Draw, n: int) -> Parts:
    """A constant matrix: c' = A c + B x, y = C c."""

    def f(p, c, x):
        return p["A"] @ c + p["B"] @ x, p["C"] @ c

    params = {"A": draw.weights(4, 4), "B": draw.weights(4, 1), "C": draw.weights(2, 4)}
    return Parts(f, params, draw(4), draw(n, 1))


def kalman(draw: Draw, n: int) -> Parts:
    """Kalman filter of a scalar observation: the carry is a mean and a covariance."""

    def f(p, carry, x):
        mean, cov = carry
        noise = p["q"] ** 2 * jnp.eye(2, dtype=cov.dtype)
        mean, cov = p["A"] @ mean, p["A"] @ cov @ p["A"].T + noise
        variance = p["C"] @ cov @ p["C"] + 1.0
        gain = cov @ p["C"] / variance
        surprise = x - p["C"] @ mean
        carry = mean + gain * surprise, cov - jnp.outer(gain, p["C"] @ cov)
        return carry, jnp.log(variance) + surprise**2 / variance

    params = {"A": draw.weights(2, 2), "C": draw(2), "q": draw(shift=1, scale=0.1)}
    return Parts(f, params, (draw(2), np.eye(2, dtype=draw.dtype)), draw(n))


def decay(draw: Draw, n: int) -> Parts:
    """Elementwise: c' = a c + x, on an array of three axes."""

    def f(p, c, x):
        c = jax.nn.sigmoid(p) * c + x
        return c, c**2

    return Parts(f, draw(2, 1, 3), draw(2, 2, 3), draw(n, 2, 2, 3, scale=0.5))


def bilinear(draw: Draw, n: int) -> Parts:
    """c'_i = c_i / 2 + c^T B_i x."""

    def f(p, c, x):
        return 0.5 * c + jnp.einsum("j,ijk,k->i", c, p, x), c[0]

    return Parts(f, draw(3, 3, 2, scale=0.15), draw(3), draw(n, 2))


def cumsum(draw: Draw, n: int) -> Parts:
    """Identity Jacobian: c' = c + w x."""

    def f(p, c, x):
        c = c + p * x
        return c, c

    return Parts(f, draw(2), draw(2), draw(n, 2))


def attention(draw: Draw, n: int) -> Parts:
    """Linear attention: S' = g S + k v^T, z' = g z + k, y = q S / (q z + 1)."""

    def f(p, carry, x):
        q, k, v = (jnp.exp(x @ p["q"]), jnp.exp(x @ p["k"]), x @ p["v"])
        gate = jax.nn.sigmoid(p["gate"])
        state = gate * carry["S"] + jnp.outer(k, v)
        norm = gate * carry["z"] + k
        return {"S": state, "z": norm}, q @ state / (q @ norm + 1)

    params = {"q": draw.weights(2, 3), "k": draw.weights(2, 3), "v": draw.weights(2, 2)}
    params["gate"] = draw()
    init = {"S": draw(3, 2), "z": np.abs(draw(3))}
    return Parts(f, params, init, draw(n, 2))


def matrix_products(draw: Draw, n: int) -> Parts:
    """Matrices that do not commute: C' = (I + X) C R, with a rotation R."""

    def f(p, c, x):
        rotation = jnp.stack([jnp.cos(p), jnp.sin(p), -jnp.sin(p), jnp.cos(p)]).reshape(2, 2)
        c = (0.8 * jnp.eye(2, dtype=c.dtype) + x) @ c @ rotation
        return c, jnp.trace(c)

    return Parts(f, draw(), draw(2, 2), draw(n, 2, 2, scale=0.2))


def relu(draw: Draw, n: int) -> Parts:
    """Dead units: rows of the Jacobian are exactly zero."""

    def f(p, c, x):
        c = jax.nn.relu(p @ c + x)
        return c, c

    return Parts(f, draw.weights(5, 5, gain=1.0), draw(5), draw(n, 5, shift=-0.3))


def layer_norm(draw: Draw, n: int) -> Parts:
    """A normalised residual step: every row of the Jacobian couples all features."""

    def f(p, h, x):
        h = h + jnp.tanh(h @ p["W"]) + x
        centred = h - h.mean(axis=-1, keepdims=True)
        h = p["scale"] * centred / jnp.sqrt((centred**2).mean(axis=-1, keepdims=True) + 0.1)
        return h, h.sum(axis=-1)

    params = {"W": draw.weights(3, 3), "scale": draw(3, shift=0.7, scale=0.1)}
    return Parts(f, params, draw(2, 3), draw(n, 2, 3))


def heads(draw: Draw, n: int) -> Parts:
    """Block diagonal: three heads of two features, the batch axis in the middle: (head, B, d)."""

    def f(p, h, x):
        h = jnp.tanh(jnp.einsum("hbd,hde->hbe", h, p) + x[:, None, :])
        return h, jnp.einsum("hbd->bd", h)

    return Parts(f, draw.weights(3, 2, 2), draw(3, 2, 2), draw(n, 3, 2))


def diffusion(draw: Draw, n: int) -> Parts:
    """A stencil: the Jacobian is banded and circulant."""

    def f(p, c, x):
        c = c + p * (jnp.roll(c, 1) - 2 * c + jnp.roll(c, -1)) + x
        return c, c[::2]

    return Parts(f, draw(shift=0.2, scale=0.02), draw(5), draw(n, 5, scale=0.3))


def forward_algorithm(draw: Draw, n: int) -> Parts:
    """The forward algorithm of a hidden Markov model in log space."""

    def f(p, c, x):
        c = jax.nn.logsumexp(c[:, None] + jax.nn.log_softmax(p, axis=1), axis=0) + x
        return c, jax.nn.logsumexp(c)

    return Parts(f, draw(3, 3), draw(3), draw(n, 3, scale=0.5))


def scalar(draw: Draw, n: int) -> Parts:
    """Everything is a scalar."""

    def f(p, c, x):
        c = jnp.sin(c) * p + x
        return c, c * x

    return Parts(f, draw(shift=0.7, scale=0.1), draw(), draw(n))


CELLS = {
    builder.__name__: builder
    for builder in (
        elman, elman_batch_first, elman_batch_last, gru, lstm, min_gru, lru, complex_conjugate,
        lorenz, linear, kalman, decay, bilinear, cumsum, attention, matrix_products, relu,
        layer_norm, heads, diffusion, forward_algorithm, scalar,
    )
}  # fmt: skip
