"""A linear scan by a method is transposed as the program of `jax.lax.scan`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parscan_bp as pb
from tests.quickly import jit_quickly

METHODS = [pb.Chunks(), pb.Newton(), pb.FixedPoint(), "frozen_activations", "auto"]
W = jnp.array([[0.5, 0.2], [-0.1, 0.3]])
AT = jnp.array([0.4, -1.0]), jnp.cos(jnp.arange(12.0)).reshape(6, 2)
CT = jax.tree.map(jnp.sin, AT)


def linear(scan, w, h, xs):
    def step(h, x):
        new = h @ w + x
        return new, 2 * new - h

    return scan(step, h, xs)


def turned(scan, around):
    return jax.linear_transpose(around(functools.partial(linear, scan, W)), *AT)(CT)


def of_rows(scan):
    """The transpose of a mapped scan, whose rows differ; axes of arguments and results do, too."""
    f = jax.vmap(functools.partial(linear, scan, W), (None, 1), (0, 1))
    h, xs = AT[0], jnp.stack([AT[1], 2 * AT[1]], 1)
    ct = jnp.stack([h, 3 * h]), jnp.cos(xs)
    return jax.linear_transpose(f, h, xs)(ct)


def of_weights(scan):
    """The derivative of a transpose by what it is not linear in."""

    def loss(w):
        back = jax.linear_transpose(functools.partial(linear, scan, w), *AT)(CT)
        return sum(jnp.sum(jnp.sin(v)) for v in back)

    return jax.grad(loss)(W)


def in_a_rule(scan):
    """A scan of tangents in the rule of a `jax.custom_jvp`."""
    f = jax.custom_jvp(lambda a: linear(jax.lax.scan, W, a, AT[1])[0])

    @f.defjvp
    def _(primals, tangents):
        return f(*primals), linear(scan, W, tangents[0], 0 * AT[1])[0]

    return jax.grad(lambda a: jnp.sum(jnp.sin(f(a))))(AT[0])


def words(scan):
    arounds = (lambda f: f, jax.jit, jax.checkpoint)
    plain = [turned(scan, around) for around in arounds]
    return plain, of_rows(scan), of_weights(scan), in_a_rule(scan)


@pytest.fixture(scope="module")
def want():
    return jit_quickly(lambda: words(jax.lax.scan))()


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_the_transpose_is_that_of_lax_scan(method, want):
    got = jit_quickly(lambda: words(functools.partial(pb.scan, forward=method)))()
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_outside_of_jit_and_with_a_named_solver():
    scan = functools.partial(pb.scan, forward=pb.Newton(), solver=pb.Blelloch())
    got, want = turned(scan, lambda f: f), turned(jax.lax.scan, lambda f: f)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_what_is_not_linear_has_no_transpose():
    last = lambda h: pb.scan(lambda h, x: (jnp.tanh(h), x), h, AT[1], forward=pb.Chunks())[0]  # noqa: E731
    with pytest.raises(NotImplementedError, match="tanh"):
        jax.linear_transpose(last, AT[0])(AT[0])
