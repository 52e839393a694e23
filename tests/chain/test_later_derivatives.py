"""Layers with a `jax.custom_jvp`: later derivatives are those of the rule that was run."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parscan_bp as pb
from parscan_bp.layers import Coloured, Function
from tests.quickly import jit_quickly

ALL = np.arange(4)


def _with_rule(rule):
    call = jax.custom_jvp(_above)
    call.defjvp(rule)
    return call


def _above(v, k):
    return (v > 0).astype(v.dtype)


# Slopes read k, by which the function has no derivative.
KINDS = {
    "spike": _with_rule(lambda p, t: (KINDS["spike"](*p), p[1] * t[0])),
    "plain": _with_rule(lambda p, t: (_above(*p), jnp.cos(p[1]) * t[0])),
}
LAYERS = {
    "sweep": (Function, pb.Sweep()),
    "none": (Function, None),
    "blelloch": (lambda f: Coloured(f, ALL // 2, ALL % 2), pb.Blelloch()),
}
SLOW = [("plain", "sweep"), ("plain", "blelloch"), *(("spike", how) for how in LAYERS)]
ARGS = tuple(map(np.array, ([0.7, -1.2], [0.4, 0.8], [[0.2, 0.3], [0.5, -0.2]])))
TANGENTS = tuple(map(np.array, ([0.3, 1.0], [1.0, -0.6], [[0.5, 0.8], [0.1, -1.0]])))


def _layer(kind, p, x):
    f = KINDS[kind]
    return 0.9 * x * (1 - 0.5 * f(x, p["k"])) + p["w"] * jnp.sin(x[::-1]) + f(p["w"], p["k"])


def _derivatives(stack):
    """Of second order in both modes, of third in one; in double precision."""

    def loss(w, k, z):
        params = [{"w": w * (1 + j), "k": k * (1 + 0.3 * j)} for j in range(2)]
        out = stack(params, z + 0 * (w + k))  # the input moves as those of later layers do
        return jnp.sum(jnp.sin(out)) + jnp.sum(out**2) * jnp.mean(k)

    def push(f):
        return lambda *args: jax.jvp(f, args, TANGENTS)[1]

    def along(*args):
        return sum(map(jnp.vdot, jax.grad(loss, (0, 1, 2))(*args), TANGENTS))

    @jit_quickly
    def run(args):
        gradients = [jax.grad(f, (0, 1, 2)) for f in (loss, along, push(push(loss)))]
        return push(gradients[0])(*args), [g(*args) for g in gradients]

    with jax.enable_x64(True):
        return run(tuple(map(jnp.asarray, ARGS)))


@functools.cache
def _by_jax(kind):
    def stack(params, x):
        for p in params:
            x = jax.vmap(functools.partial(_layer, kind, p))(x)
        return x

    return _derivatives(stack)


@pytest.mark.parametrize(
    "kind, how",
    [
        ("plain", "none"),
        *(pytest.param(kind, how, marks=pytest.mark.slow) for kind, how in SLOW),
    ],
)
def test_derivatives_after_the_first_are_those_of_the_rule(kind, how):
    make, solver = LAYERS[how]
    layers = [make(functools.partial(_layer, kind))] * 2
    got = _derivatives(lambda params, x: pb.chain(layers, params, x, solver=solver))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(_by_jax(kind)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-9)
