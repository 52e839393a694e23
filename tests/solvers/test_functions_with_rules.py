"""`solve` of `MatrixFree` operators by functions with a `jax.custom_jvp`: second derivatives."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

import parscan_bp as pb
from tests.quickly import jit_quickly

N, H = 3, 2


def _above(v, k):
    return (v > 0).astype(v.dtype)


def _with_rule(rule):
    call = jax.custom_jvp(_above)
    call.defjvp(rule)
    return call


# Slopes read k, by which the function has no derivative.
KINDS = {
    "spike": _with_rule(lambda p, t: (KINDS["spike"](*p), p[1] * t[0])),
    "plain": _with_rule(lambda p, t: (_above(*p), jnp.cos(p[1]) * t[0])),
}


def _product(kind, w, k, v):
    """Linear in v."""
    return 0.5 * w * v[::-1] * (1 - 0.5 * KINDS[kind](w - 0.3, k)) + KINDS[kind](w, k) * v


def _in_python(kind, ws, ks, g):
    found = [g[N]]
    for t in reversed(range(N)):
        found.insert(0, g[t] + _product(kind, ws[t], ks[t], found[0]))
    return jnp.stack(found)


def _uniform(kind, ws, ks, g, solver):
    size = jax.ShapeDtypeStruct((H,), g.dtype)
    linear = Partial(functools.partial(_product, kind), ws, ks)
    return pb.solve(pb.Uniform(pb.operators.MatrixFree(linear, [True, True], size), g), solver)


def _seconds(kind, solve):
    args = jnp.array([0.7, -0.2]), jnp.array([0.4, 0.8]), jnp.cos(jnp.arange(8.0)).reshape(N + 1, H)
    tangents = jax.tree.map(jnp.sin, args)

    def loss(w, k, g):
        ws, ks = (jnp.stack([v, 1.2 * v, 1.4 * v]) for v in (w, k))
        found = solve(kind, ws, ks, g)
        return jnp.sum(jnp.sin(found)) + jnp.sum(found**2) * jnp.mean(k)

    gradient = jax.grad(loss, (0, 1, 2))

    @jit_quickly
    def run(args):
        along = lambda *args: sum(map(jnp.vdot, gradient(*args), tangents))  # noqa: E731
        return jax.jvp(gradient, args, tangents), jax.grad(along, (0, 1, 2))(*args)

    return run(args)


@pytest.mark.sampled
@pytest.mark.parametrize("solver", [pb.Sweep(), pb.Jacobi()], ids=repr)
@pytest.mark.parametrize("kind", KINDS)
def test_second_derivatives_are_those_of_the_rule(kind, solver):
    with jax.enable_x64(True):
        got = _seconds(kind, functools.partial(_uniform, solver=solver))
        want = _seconds(kind, _in_python)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-9)
