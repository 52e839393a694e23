"""Programs by the public functions of other packages, whose scans are their own or in their manner.

Each returns a loss and the arrays that it is differentiated by. Numbers are small and fixed. What a
package does not call by the name `jax.lax.scan` stays as it is.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from tests.conformance.other_peoples import Program

PROGRAMS: dict[str, tuple[Callable[..., Program], tuple[str, ...]]] = {}
"""By name: what makes the program of its modules, and the names of these."""


def _of(*modules: str):
    def enter(make):
        PROGRAMS[make.__name__] = (make, modules)
        return make

    return enter


def made(name: str) -> Program:
    make, modules = PROGRAMS[name]
    return make(*map(importlib.import_module, modules))


def _normal(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def _floats(tree):
    return jax.tree.map(lambda a: jnp.asarray(a, float), tree)


@_of("equinox")
def equinox_lstm(eqx) -> Program:
    """A layer of LSTM cells, a norm between its steps, of a batch."""
    cell, norm = eqx.nn.LSTMCell(2, 3, key=jax.random.key(0)), eqx.nn.LayerNorm(3)
    arrays, static = eqx.partition((cell, norm), eqx.is_array)

    def loss(arrays, xs):
        cell, norm = eqx.combine(arrays, static)

        def step(carry, x):
            h, c = jax.vmap(cell)(x, carry)
            h = jax.vmap(norm)(h)
            return (h, c), h

        zero = jnp.zeros((xs.shape[1], 3))
        return jnp.mean(jax.lax.scan(step, (zero, zero), xs)[1] ** 3)

    return loss, (_floats(arrays), _normal(0, 6, 2, 2))


@_of("equinox.internal")
def equinox_bounded_loop(eqxi) -> Program:
    """A loop of as many rounds as a row needs, of at most four, in each step."""

    def loss(a, xs):
        def step(h, x):
            refine = lambda v: v - 0.5 * (v - jnp.cos(a * v + x))  # noqa: E731
            goes_on = lambda v: jnp.max(jnp.abs(v - jnp.cos(a * v + x))) > 1e-2  # noqa: E731
            h = eqxi.while_loop(goes_on, refine, h, max_steps=4, kind="bounded")
            return h, jnp.sin(h)

        return jnp.sum(jax.lax.scan(step, jnp.zeros(2), xs)[1])

    return loss, (jnp.array(0.4), _normal(1, 5, 2))


@_of("lineax")
def lineax_implicit_euler(lx) -> Program:
    """A linear equation by a step that solves for its end."""

    def loss(a, y, forces):
        eye = jnp.eye(3)

        def step(y, force):
            operator = lx.MatrixLinearOperator(eye - 0.2 * a)
            y = lx.linear_solve(operator, y + 0.2 * force, lx.LU()).value
            return y, jnp.sum(y**2)

        return jnp.mean(jax.lax.scan(step, y, forces)[1])

    return loss, (_normal(2, 3, 3) / 3, _normal(3, 3), _normal(4, 6, 3))


@_of("optimistix")
def optimistix_implicit_midpoint(optx) -> Program:
    """A pendulum by a step that finds a root, which is differentiated by its equation."""

    def loss(friction, y):
        def field(y):
            return jnp.stack([y[1], -jnp.sin(y[0]) - friction * y[1]])

        def step(y, _):
            residual = lambda new, y: new - y - 0.3 * field((new + y) / 2)  # noqa: E731
            newton = optx.Newton(rtol=1e-12, atol=1e-12)
            y = optx.root_find(residual, newton, y, args=y, max_steps=32).value
            return y, y[0]

        return jnp.sum(jax.lax.scan(step, y, None, length=6)[1] ** 2)

    return loss, (jnp.array(0.2), jnp.array([1.0, 0.3]))


@_of("optax")
def optax_training(optax) -> Program:
    """What a training leaves, by its rates and by where it begins."""

    def loss(rate, decay, w, xs):
        optimiser = optax.chain(
            optax.clip_by_global_norm(1.0), optax.adamw(rate, eps=1e-3, weight_decay=decay)
        )
        error = lambda w, x: jnp.mean((jnp.tanh(x @ w) - x[:, :1]) ** 2)  # noqa: E731

        def step(carry, x):
            w, state = carry
            updates, state = optimiser.update(jax.grad(error)(w, x), state, w)
            return (optax.apply_updates(w, updates), state), error(w, x)

        (w, _), errors = jax.lax.scan(step, (w, optimiser.init(w)), xs)
        return jnp.sum(errors) + error(w, xs[0])

    return loss, (jnp.array(0.1), jnp.array(0.01), _normal(5, 3, 1), _normal(6, 5, 4, 3))


@_of("flax.linen")
def flax_recurrent_layer(nn) -> Program:
    """Two layers, one of them in reverse, of sequences of different lengths."""
    gru, simple = nn.GRUCell(3, param_dtype=float), nn.SimpleCell(2, param_dtype=float)
    layers = nn.RNN(gru), nn.RNN(simple, reverse=True, keep_order=True)
    xs, lengths = _normal(7, 2, 5, 2), jnp.array([5, 3])
    keys = jax.random.split(jax.random.key(1))
    params = [
        layer.init(key, jnp.zeros((2, 5, size)), seq_lengths=lengths)
        for layer, key, size in zip(layers, keys, (2, 3), strict=True)
    ]

    def loss(params, xs):
        for layer, own in zip(layers, params, strict=True):
            xs = layer.apply(own, xs, seq_lengths=lengths)
        return jnp.mean(xs**2)

    return loss, (params, xs)


@_of("diffrax")
def diffrax_direct(dfx) -> Program:
    """Prey and predators by Heun's method, differentiated step by step."""

    def loss(rates, y):
        def field(t, y, rates):
            a, b = rates
            return jnp.stack([a * y[0] - b * y[0] * y[1], b * y[0] * y[1] - y[1] * jnp.cos(t)])

        saved = dfx.SaveAt(ts=jnp.linspace(0.0, 1.0, 4))
        options = {"saveat": saved, "adjoint": dfx.DirectAdjoint(), "max_steps": 16}
        term = dfx.ODETerm(field)
        found = dfx.diffeqsolve(term, dfx.Heun(), 0.0, 1.0, 0.125, y, args=rates, **options)
        return jnp.mean(found.ys**2)

    return loss, ((jnp.array(1.1), jnp.array(0.6)), jnp.array([1.0, 0.5]))


@_of("distrax")
def distrax_hidden_markov_model(distrax) -> Program:
    """Counts with hidden states: the logarithm of their probability."""

    def loss(logits, rates):
        model = distrax.HMM(
            distrax.Categorical(logits=jnp.zeros(3)),
            distrax.Categorical(logits=logits),
            distrax.Normal(rates, jnp.exp(0.1 * rates)),
        )
        return -model.forward(_normal(8, 7))[0]

    return loss, (_normal(9, 3, 3), jnp.array([-1.0, 0.2, 1.0]))


@_of("dynamax.linear_gaussian_ssm.inference")
def dynamax_filter(inference) -> Program:
    """The likelihood of a linear Gaussian model, and its smoothed means."""

    def loss(f, log_q, ys):
        q, r = jnp.exp(log_q) * jnp.eye(2), 0.5 * jnp.eye(1)
        given = (jnp.zeros(2), jnp.eye(2), f, q, jnp.array([[1.0, -0.4]]), r)
        found = inference.lgssm_smoother(inference.make_lgssm_params(*given), ys)
        return -found.marginal_loglik + jnp.sum(found.smoothed_means**2)

    return loss, (0.6 * jnp.eye(2) + 0.1 * _normal(10, 2, 2), jnp.array(-0.4), _normal(11, 6, 1))


@_of("numpyro", "numpyro.distributions", "numpyro.contrib.control_flow", "numpyro.infer.util")
def numpyro_random_walk(numpyro, dist, control_flow, util) -> Program:
    """The density of a walk that is seen with noise, by where it was."""
    seen = _normal(12, 6)

    def model(drift, scale):
        def step(level, y):
            level = numpyro.sample("level", dist.Normal(drift * level, scale))
            return level, numpyro.sample("seen", dist.StudentT(4.0, level, 0.5), obs=y)

        control_flow.scan(step, jnp.zeros(()), seen)

    def loss(drift, log_scale, levels):
        args = drift, jnp.exp(log_scale)
        return -util.log_density(model, args, {}, {"level": levels})[0]

    return loss, (jnp.array(0.8), jnp.array(-0.3), _normal(13, 6))
