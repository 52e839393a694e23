"""Programs as other libraries write them, around `lax.scan`, which is their argument.

Each returns a loss and the arrays that it is differentiated by. Numbers are small and fixed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

Scan = Callable[..., Any]
Program = tuple[Callable[..., jax.Array], tuple[Any, ...]]


def _normal(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def kalman_likelihood(scan: Scan) -> Program:
    """The marginal log likelihood of a linear Gaussian state-space model, by a Kalman filter."""

    def loss(params, ys):
        f, h = params["f"], params["h"]
        q, r = jnp.exp(params["q"]) * jnp.eye(2), jnp.exp(params["r"]) * jnp.eye(1)

        def step(carry, y):
            ll, mean, cov = carry
            s = h @ cov @ h.T + r
            gain = jnp.linalg.solve(s, h @ cov).T
            residual = y - h @ mean
            ll = ll + jax.scipy.stats.multivariate_normal.logpdf(residual, jnp.zeros(1), s)
            mean, cov = mean + gain @ residual, cov - gain @ s @ gain.T
            return (ll, f @ mean, f @ cov @ f.T + q), (mean, cov)

        (ll, _, _), (means, _) = scan(step, (0.0, jnp.zeros(2), jnp.eye(2)), ys)
        return -ll + 0.01 * jnp.sum(means**2)

    params = {"f": 0.7 * jnp.eye(2) + 0.1 * _normal(0, 2, 2), "h": _normal(1, 1, 2)}
    return loss, ({**params, "q": jnp.array(-1.0), "r": jnp.array(-0.5)}, _normal(2, 8, 1))


def extended_kalman(scan: Scan) -> Program:
    """A filter that linearises its own model: a Jacobian within the step."""

    def loss(params, ys):
        model = lambda m: jnp.tanh(params["a"] @ m)  # noqa: E731

        def step(carry, y):
            mean, cov = carry
            f = jax.jacfwd(model)(mean)
            mean, cov = model(mean), f @ cov @ f.T + 0.1 * jnp.eye(2)
            s = cov[0, 0] + jnp.exp(params["r"])
            gain = cov[:, 0] / s
            error = y - mean[0]
            new = (mean + gain * error, cov - jnp.outer(gain, cov[0]))
            return new, -0.5 * (jnp.log(s) + error**2 / s)

        return -scan(step, (jnp.zeros(2), jnp.eye(2)), ys)[1].sum()

    return loss, ({"a": 0.8 * _normal(3, 2, 2), "r": jnp.array(-1.0)}, _normal(4, 7))


def hidden_markov_model(scan: Scan) -> Program:
    """The forward algorithm in log space; -inf where a transition is forbidden."""

    def loss(params):
        forbidden = jnp.array([[False, True, False], [False] * 3, [False] * 3])
        transition = jax.nn.log_softmax(jnp.where(forbidden, -jnp.inf, params["a"]), -1)
        emission = jax.nn.log_softmax(params["b"], -1)

        def step(alpha, y):
            alpha = logsumexp(alpha[:, None] + transition, axis=0) + emission[:, y]
            norm = logsumexp(alpha)
            return alpha - norm, norm

        alpha, norms = scan(step, jnp.log(jnp.ones(3) / 3), jnp.array([0, 1, 1, 0, 3, 2, 2]))
        return -norms.sum() + alpha[0] * 0.1

    return loss, ({"a": _normal(5, 3, 3), "b": _normal(6, 3, 4)},)


def advantages_with_resets(scan: Scan) -> Program:
    """Generalised advantage estimation, in reverse, with episodes that end on the way."""

    def loss(values, rewards):
        done = jnp.array([0, 0, 1, 0, 0, 1, 0], bool)[:, None]

        def step(carry, transition):
            advantage, following = carry
            done, value, reward = transition
            delta = reward + 0.99 * following * (1 - done) - value
            advantage = delta + 0.99 * 0.95 * (1 - done) * advantage
            return (advantage, value), advantage

        init = (jnp.zeros_like(values[-1]), values[-1])
        xs = (done, values[:-1], rewards)
        _, advantages = scan(step, init, xs, reverse=True, unroll=16)
        return jnp.mean(advantages**2) + jnp.mean(jax.nn.relu(advantages + values[:-1]))

    return loss, (_normal(7, 8, 3), _normal(8, 7, 3))


def runge_kutta(scan: Scan) -> Program:
    """An ODE by the classical method, from times to a trajectory."""

    def loss(params, y0):
        def field(y, t):
            return jnp.stack([y[1], params["mu"] * (1 - y[0] ** 2) * y[1] - y[0] + jnp.sin(t)])

        def step(y, times):
            t, end = times
            dt = end - t
            k1 = field(y, t)
            k2 = field(y + dt / 2 * k1, t + dt / 2)
            k3 = field(y + dt / 2 * k2, t + dt / 2)
            k4 = field(y + dt * k3, end)
            y = y + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            return y, y

        times = jnp.linspace(0, 1, 9)
        _, ys = scan(step, y0, (times[:-1], times[1:]))
        return jnp.mean((ys[:, 0] - jnp.cos(times[1:])) ** 2)

    return loss, ({"mu": jnp.array(0.8)}, jnp.array([1.0, 0.2]))


def linear_recurrent_unit(scan: Scan) -> Program:
    """A diagonal state-space model with complex poles; real inputs, real outputs."""

    def loss(params, xs):
        lam = jnp.exp(-jnp.exp(params["nu"]) + 1j * jnp.exp(params["theta"]))
        b = params["b_re"] + 1j * params["b_im"]
        c = params["c_re"] + 1j * params["c_im"]
        scale = jnp.sqrt(1 - jnp.abs(lam) ** 2)

        def step(h, x):
            h = lam * h + scale * (b @ x)
            return h, (c @ h).real

        _, ys = scan(step, jnp.zeros(3, complex), xs)
        return jnp.mean((ys - jnp.roll(xs, 1, 0)) ** 2)

    names = ("nu", "theta", "b_re", "b_im", "c_re", "c_im")
    shapes = ((3,), (3,), (3, 2), (3, 2), (2, 3), (2, 3))
    params = {n: 0.5 * _normal(k, *s) for k, (n, s) in enumerate(zip(names, shapes, strict=True))}
    return loss, (params, _normal(9, 9, 2))


def meta_gradient_of_adam(scan: Scan) -> Program:
    """The learning rate's gradient through an inner training by Adam: a gradient in the step."""

    def loss(meta, start):
        x, y = _normal(10, 8, 2), _normal(11, 8)

        def inner(w, x, y):
            return jnp.mean((jnp.tanh(x @ w) - y) ** 2) + jnp.exp(meta["decay"]) * jnp.sum(w**2)

        def step(carry, batch):
            w, m, v, count = carry
            value, g = jax.value_and_grad(inner)(w, *batch)
            count = count + 1
            m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g**2
            update = (m / (1 - 0.9**count)) / (jnp.sqrt(v / (1 - 0.99**count)) + 1e-8)
            return (w - jnp.exp(meta["rate"]) * update, m, v, count), value

        init = (start, jnp.zeros(2), jnp.zeros(2), jnp.array(0))
        batches = (x.reshape(4, 2, 2), y.reshape(4, 2))
        (w, *_), values = scan(step, init, batches)
        return inner(w, x, y) + 0.1 * values.mean()

    return loss, ({"rate": jnp.array(-2.0), "decay": jnp.array(-3.0)}, _normal(12, 2))


def spiking_neurons(scan: Scan) -> Program:
    """Leaky integrate-and-fire neurons; a spike's slope is a surrogate."""

    @jax.custom_jvp
    def spike(v):
        return (v > 0).astype(v.dtype)

    @spike.defjvp
    def _(primals, tangents):
        (v,), (t,) = primals, tangents
        return spike(v), t / (1 + 5 * jnp.abs(v)) ** 2

    def loss(params, xs):
        def step(state, x):
            v, s = state
            v = 0.9 * v * (1 - jax.lax.stop_gradient(s)) + x @ params["w"] + s @ params["r"]
            s = spike(v - 1.0)
            return (v, s), (s, v)

        zero = jnp.zeros(3)
        _, (spikes, v) = scan(step, (zero, zero), xs)
        return jnp.sum((spikes.mean(0) - 0.3) ** 2) + 0.01 * jnp.sum(v**2)

    return loss, ({"w": _normal(13, 2, 3), "r": 0.3 * _normal(14, 3, 3)}, _normal(15, 9, 2))


def truncated_back_propagation(scan: Scan) -> Program:
    """Windows of a long sequence, the state between them being stopped: a loop in a loop."""

    def loss(params, xs):
        cell = lambda h, x: 2 * (jnp.tanh(h @ params["w"] + x),)  # noqa: E731

        def window(h, xs):
            h, ys = scan(cell, jax.lax.stop_gradient(h), xs)
            return h, jnp.mean(ys**2)

        h, losses = scan(window, jnp.zeros(2), xs.reshape(4, 3, 2))
        return losses.sum() + h[0]

    return loss, ({"w": _normal(16, 2, 2) / 2}, _normal(17, 12, 2))


def accumulated_gradients(scan: Scan) -> Program:
    """Gradients of micro-batches added up in a loop, then used."""

    def loss(params, xs):
        micro = lambda p, x: jnp.mean(jnp.cos(x @ p["w"]) ** 2)  # noqa: E731

        def step(total, x):
            value, g = jax.value_and_grad(micro)(params, x)
            return jax.tree.map(jnp.add, total, g), value

        total, values = scan(step, jax.tree.map(jnp.zeros_like, params), xs)
        return sum(jnp.sum(g**2) for g in jax.tree.leaves(total)) + values.mean()

    return loss, ({"w": _normal(18, 2, 3)}, _normal(19, 4, 5, 2))


def attention_online(scan: Scan) -> Program:
    """A softmax over keys that come one block after another, its largest entry carried."""

    def loss(q, k, v):
        def step(carry, block):
            top, norm, out = carry
            k, v = block
            scores = q @ k.T
            new = jnp.maximum(top, scores.max(-1))
            weights, keep = jnp.exp(scores - new[:, None]), jnp.exp(top - new)
            return (new, norm * keep + weights.sum(-1), out * keep[:, None] + weights @ v), None

        init = (jnp.full(3, -jnp.inf), jnp.zeros(3), jnp.zeros((3, 2)))
        (_, norm, out), _ = scan(step, init, (k.reshape(3, 2, 2), v.reshape(3, 2, 2)))
        return jnp.sum((out / norm[:, None]) ** 2)

    return loss, (_normal(20, 3, 2), _normal(21, 6, 2), _normal(22, 6, 2))


PROGRAMS: dict[str, Callable[[Scan], Program]] = {
    f.__name__: f
    for f in (
        *(kalman_likelihood, extended_kalman, hidden_markov_model, advantages_with_resets),
        *(runge_kutta, linear_recurrent_unit, meta_gradient_of_adam, spiking_neurons),
        *(truncated_back_propagation, accumulated_gradients, attention_online),
    )
}
