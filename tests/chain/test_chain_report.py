"""`report=True` of `chain`: how good derivatives of a stack are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parscan_bp as pb
from parscan_bp.layers import Linear, init

LAYERS = [Linear(5), jax.nn.relu, Linear(4), jnp.tanh, Linear(2)]
PARAMS = init(LAYERS, jax.random.key(0), (3,))
X = jax.random.normal(jax.random.key(1), (6, 3))


def value(params, x, solver=None):
    y, report = pb.chain(LAYERS, params, x, solver=solver, report=True)
    return jnp.sum(y**2), report


@pytest.mark.parametrize("solver", [None, pb.Sweep(), pb.Blelloch()], ids=str)
def test_it_stands_beside_the_value(solver):
    y, report = pb.chain(LAYERS, PARAMS, X, solver=solver, report=True)
    np.testing.assert_array_equal(y, pb.chain(LAYERS, PARAMS, X, solver=solver))
    assert report.status == pb.Status.OK and report.residual < 1e-6 and not report.fell_back


def test_it_is_alive_under_every_transformation():
    (_, one), grads = jax.jit(jax.value_and_grad(value, has_aux=True))(PARAMS, X)
    want = jax.jit(jax.grad(lambda p: jnp.sum(pb.chain(LAYERS, p, X) ** 2)))(PARAMS)
    for a, b in zip(*map(jax.tree.leaves, (grads, want)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    (_, same), (_, slopes) = jax.jit(lambda x: jax.jvp(lambda x: value(PARAMS, x), (x,), (x,)))(X)
    assert one.status == same.status == 0 and slopes.residual == 0
    np.testing.assert_allclose(one.residual, same.residual, atol=1e-6)
    mapped = jax.jit(jax.vmap(lambda x: value(PARAMS, x)[1]))(jnp.stack([X, X * jnp.inf]))
    assert mapped.status.tolist() == [0, 1] and np.isnan(mapped.residual[1])


def test_a_tree_that_overflows_is_reported_where_a_sweep_is_not():
    layers = [Linear(1) for _ in range(8)]
    sizes = jnp.ones(8, jnp.float32).at[4:7].set(1e15)
    params = [{"kernel": a[None, None], "bias": jnp.zeros(1, jnp.float32)} for a in sizes]
    reports = [
        pb.chain(layers, params, jnp.zeros((1, 1), jnp.float32), solver=s, report=True)[1]
        for s in (pb.Sweep(), pb.Blelloch())
    ]
    assert [int(r.status) for r in reports] == [pb.Status.OK, pb.Status.NON_FINITE]


def test_stacks_without_a_solver():
    for layers, params in (([], []), ([jax.nn.relu], [None])):
        y, report = pb.chain(layers, params, X, report=True)
        assert y.shape == X.shape and report.status == pb.Status.OK
    with pytest.raises(TypeError, match="report: got 'yes'"):
        pb.chain(LAYERS, PARAMS, X, report="yes")
