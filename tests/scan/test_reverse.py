"""The reverse-mode form of the scan: the gradients of `lax.scan`, and no other derivative."""

import functools

import jax
import jax.numpy as jnp
import pytest

import parscan_bp as pb
from tests.family import assert_derivatives_close, compare_outputs

FLOAT = jnp.zeros(()).dtype
TOLERANCE = {"float64": 1e-10, "float32": 1e-5}[str(FLOAT)]
W, XS = (jax.random.normal(jax.random.key(n), (n, 4), FLOAT) for n in (4, 7))


def _loss(scan, w, h, xs):
    def step(carry, x):
        h, count = carry
        h = jnp.tanh(h @ w + x * count)
        return (h, count + 1), jnp.sin(h)

    (h, count), ys = scan(step, (h, 0), xs)
    return jnp.sum(ys**2) + jnp.sum(h) * count


@pytest.mark.parametrize("solver", [None, pb.Sweep(chunk=3), pb.Blelloch()])
def test_gradients_through_closures_inputs_and_integer_carries(solver):
    ours = lambda *args: pb.custom_vjp_scan(*args, solver=solver)  # noqa: E731
    args = (W, jnp.ones(4, FLOAT), XS)
    got, want = (
        jax.jit(jax.value_and_grad(lambda *a: _loss(scan, *a), (0, 1, 2)))(*args)
        for scan in (ours, jax.lax.scan)
    )
    compare_outputs(got[0], want[0])
    assert_derivatives_close(got[1], want[1], TOLERANCE)


def test_forward_mode_is_refused():
    loss = lambda xs: _loss(pb.custom_vjp_scan, W, jnp.ones(4, FLOAT), xs)  # noqa: E731
    with pytest.raises(TypeError, match="custom_vjp"):
        jax.jvp(loss, (XS,), (XS,))


def test_mistakes_are_those_of_scan():
    with pytest.raises(ValueError, match="jacobian: got 'none'"):
        pb.custom_vjp_scan(lambda h, x: (h, x), 0.0, XS, jacobian="none")


@pytest.mark.parametrize("read", ["both", "shared"])
def test_outputs_that_are_the_same_for_all_of_a_batch_count_once(read):
    """A function with a rule of its own must not be told so: the rule is mapped over cotangents."""
    keys = jax.vmap(jax.random.split, (0, None))(jax.random.split(jax.random.key(0), 3), 5)

    def pulled(scan, p, keys):
        def step(carry, key):
            h, p = carry
            h = jnp.tanh(h * p + jax.random.normal(key, h.shape))
            return (h, p), {"both": (h, p), "shared": p}[read]

        one = lambda p, h, keys: scan(step, (h, p), keys)[1]  # noqa: E731
        args = p, jnp.ones(4, FLOAT), keys
        ys, pull = jax.vjp(lambda p, h: jax.vmap(one, (None, None, 0))(p, h, keys), *args[:2])
        return ys, pull(jax.tree.map(jnp.cos, ys))

    ours = lambda *args: pb.custom_vjp_scan(*args, solver=pb.Sweep())  # noqa: E731
    got, want = jax.jit(lambda p: [pulled(scan, p, keys) for scan in (ours, jax.lax.scan)])(W[0])
    compare_outputs(got[0], want[0])
    assert_derivatives_close(got[1], want[1], TOLERANCE)


def test_what_is_mapped_and_not_differentiated_may_be_closed_over():
    """The rule is run where the loop around is differentiated, and there is no such axis."""
    ws = jnp.stack([W, 0.5 * W])

    def loss(scan, xs):
        def outer(total, scale):
            one = lambda w: scan(lambda h, x: (jnp.tanh(h @ w + x), h), XS[0], scale * xs)[0]  # noqa: E731
            return total + jnp.sum(jax.vmap(one)(ws)), None

        return jax.lax.scan(outer, jnp.zeros((), FLOAT), jnp.ones(2, FLOAT))[0]

    both = pb.custom_vjp_scan, jax.lax.scan
    got, want = jax.jit(lambda xs: [jax.grad(functools.partial(loss, f))(xs) for f in both])(XS)
    assert_derivatives_close(got, want, TOLERANCE)


def _shared(scan, p, h, xs):
    """A carry and an output that depend on p alone."""

    def step(carry, x):
        h, p = carry
        return (jnp.tanh(h * p + x), 0.5 * p), 2 * p

    (h, p), ys = scan(step, (h, p), xs)
    return h, p, ys


def test_outputs_that_are_not_mapped_stay_so():
    run = lambda x: _shared(pb.custom_vjp_scan, W[0], W[1], x)  # noqa: E731
    found = jax.eval_shape(jax.vmap(run, 0, (0, None, None)), jnp.stack([XS, 2 * XS]))
    assert [a.shape for a in found] == [(2, 4), (4,), (7, 4)]


def test_axes_that_are_mapped_one_around_the_other():
    xs = jnp.stack([XS, 0.5 * XS, -XS])

    def pulled(scan):
        def all_of(p, hs, xs):
            inner = jax.vmap(functools.partial(_shared, scan), (None, 0, None), (1, None, None))
            return jax.vmap(inner, (None, None, 0))(p, hs, xs)

        outs, pull = jax.vjp(all_of, W[0], W[1:3], xs)
        return outs, pull(jax.tree.map(jnp.cos, outs))

    got, want = jax.jit(lambda: [pulled(f) for f in (pb.custom_vjp_scan, jax.lax.scan)])()
    compare_outputs(got[0], want[0])
    assert_derivatives_close(got[1], want[1], TOLERANCE)


def test_a_cotangent_that_is_the_same_for_all_of_a_batch_is_that_of_each():
    xs = jnp.stack([XS, 0.5 * XS, -XS])

    def pulled(scan):
        def one(x):
            outs, pull = jax.vjp(functools.partial(_shared, scan), W[0], W[1], x)
            return pull(jax.tree.map(jnp.ones_like, outs))

        return jax.vmap(one)(xs)

    got, want = jax.jit(lambda: [pulled(f) for f in (pb.custom_vjp_scan, jax.lax.scan)])()
    assert_derivatives_close(got, want, TOLERANCE)
