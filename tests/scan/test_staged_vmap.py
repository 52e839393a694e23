"""A mapped scan that is staged before it is differentiated: axes of tangents are those of values.

What is staged keeps the function of a rule and traces the rule later. Where the batch is as long as
the loop, an axis in the wrong place has the right shape.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import parscan_bp as pb
from tests.family import together

SOLVERS = {
    "auto": None,
    "sweep": pb.Sweep(),
    "keeping": pb.Sweep(recompute=False),
    "blelloch": pb.Blelloch(),
}
X64 = jnp.zeros(()).dtype == jnp.float64
TOLERANCE = {"rtol": 1e-9, "atol": 1e-10} if X64 else {"rtol": 2e-3, "atol": 1e-4}
# Large enough for solver=None to take a solver.
LENGTH, ROWS, HIDDEN = 6, 200, 2
BATCHES = {"as long as the loop": LENGTH, "shorter": 3}
STAGED = {
    "jit of vmap": lambda f: jax.jit(jax.vmap(f)),
    "vmap of jit": lambda f: jax.vmap(jax.jit(f)),
    "checkpoint of vmap": lambda f: jax.checkpoint(jax.vmap(f)),
    "vmap of checkpoint": lambda f: jax.vmap(jax.checkpoint(f)),
    "vmap of cond": lambda f: jax.vmap(lambda x: lax.cond(x.sum() > -1e9, f, f, x)),
    "scan of vmap": lambda f: lambda x: lax.scan(lambda c, _: (c, jax.vmap(f)(x)), 0, None, 1)[1],
}


def _arguments(batch):
    rng = np.random.default_rng(0)
    w = rng.normal(size=(HIDDEN, HIDDEN)) / 2
    xs = rng.normal(size=(batch, LENGTH, ROWS, HIDDEN))
    return jnp.asarray(w, float), jnp.asarray(xs, float)


def _run(scan, stage, w, xs):
    def one(xs):
        step = lambda h, x: (jnp.tanh(h @ w + x), h * x)  # noqa: E731
        return scan(step, jnp.zeros((ROWS, HIDDEN), xs.dtype), xs)

    return stage(one)(xs)


def _loss(scan, stage, w, xs):
    h, ys = _run(scan, stage, w, xs)
    return jnp.sum(jnp.sin(h)) + jnp.sum(ys * jnp.cos(jnp.arange(ys.size)).reshape(ys.shape))


def _first_order(scan, stage, w, xs):
    run = functools.partial(_run, scan, stage)
    return jax.jvp(run, (w, xs), (jnp.cos(w), jnp.cos(xs)))


def _second_order(scan, stage, w, xs):
    gradient = jax.grad(functools.partial(_loss, scan, stage), (0, 1))
    product = jax.jvp(gradient, (w, xs), (jnp.cos(w), jnp.cos(xs)))
    again = jax.grad(lambda w: jnp.sum(gradient(w, xs)[0] ** 2))(w)
    return *product, again


@pytest.mark.sampled
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("stage", STAGED)
@pytest.mark.parametrize("derivative", [_first_order, _second_order])
def test_a_staged_vmap(derivative, stage, batch, solver, request):
    def case(derivative, stage, batch, solver):
        scans = functools.partial(pb.scan, solver=SOLVERS[solver]), lax.scan
        both = [functools.partial(derivative, scan, STAGED[stage]) for scan in scans]
        return lambda *at: [f(*at) for f in both], _arguments(BATCHES[batch])

    got, want = together(request, case)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, **TOLERANCE)
