"""A Python number that is carried stays one: weak, so that it does not widen what it meets."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import parscan_bp as pb

SOLVERS = {"auto": None, "sweep": pb.Sweep(), "blelloch": pb.Blelloch()}
LENGTH, ROWS, HIDDEN = 50, 16, 20


def _types(tree):
    return [(v.dtype, bool(v.weak_type)) for v in jax.tree.leaves(tree)]


def _run(scan, w, dtype=jnp.bfloat16):
    def step(c, x):
        k, n, h = c
        return (k * 0.9, n + 1, jnp.tanh(h @ w + x)), (k, n, h)

    init = (1.0, 1, jnp.zeros((ROWS, HIDDEN), dtype))
    return scan(step, init, jnp.ones((LENGTH, ROWS, HIDDEN), dtype))


W = jnp.full((HIDDEN, HIDDEN), 0.02, jnp.bfloat16)


def _loss(scan, w):
    (k, _, h), _ = _run(scan, w)
    return (h * k).sum()


MODES = {
    "value": lambda scan: _run(scan, W),
    "jvp": lambda scan: jax.jvp(lambda w: _run(scan, w), (W,), (W,))[0],
    "vjp": lambda scan: jax.vjp(lambda w: _run(scan, w), W)[0],
    "linearize": lambda scan: jax.linearize(lambda w: _run(scan, w), W)[0],
    "loss": lambda scan: jax.value_and_grad(functools.partial(_loss, scan))(W),
    "jvp of the loss": lambda scan: jax.jvp(functools.partial(_loss, scan), (W,), (W,)),
    "of the number": lambda scan: jax.jvp(
        lambda k: scan(lambda k, _: (k * 0.9, k), k, None, LENGTH), (1.0,), (1.0,)
    ),
}


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("mode", MODES)
def test_weak_types_of_carries_and_outputs(mode, solver):
    got, want = _abstractly(MODES[mode], solver)
    assert got == want


def _abstractly(f, solver):
    """Nothing is computed: types are known from the trace."""
    scan = functools.partial(pb.scan, solver=SOLVERS[solver])
    return tuple(_types(jax.eval_shape(lambda: f(s))) for s in (scan, lax.scan))


def test_a_bfloat16_loss_stays_one():
    """As found, eagerly: the solver is chosen."""
    value, _ = jax.value_and_grad(functools.partial(_loss, pb.scan))(W)
    assert value.dtype == jnp.bfloat16
