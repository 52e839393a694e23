"""Steps that round within: what they lose there is in the floor, or they are refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parscan_bp as pb


@pytest.mark.parametrize("seed", range(3))
def test_what_cancels_inside_of_a_step_is_in_the_floor(seed):
    """W N = 0 but for rounding: batched and sequential products have nothing else in common."""
    rng = np.random.default_rng(seed)
    w = rng.normal(size=(4, 64))
    w, n = (jnp.asarray(a, jnp.float32) for a in (w, 1e5 * np.linalg.svd(w)[2][4:8].T))
    u = jnp.asarray(rng.normal(size=(97, 4)) * 0.3, jnp.float32)

    @jax.jit
    def both(w, n, u):
        def step(c, x):
            h = jnp.tanh(c @ w @ n + 0.5 * c + x)
            return h, h

        first = jnp.zeros(4, jnp.float32)
        how = {"forward": pb.Chunks(8, rounds=8), "report": True}
        _, ys, report = pb.scan(step, first, u, **how)
        return ys, report.forward, jax.lax.scan(step, first, u)[1]

    ys, told, want = both(w, n, u)
    assert told.fell_back and told.floor > told.tolerance
    np.testing.assert_array_equal(ys, want)


@pytest.mark.parametrize("certify", ["estimate", "bound"])
def test_what_cancels_in_a_product_of_the_inputs_is_in_the_floor(certify):
    """Batched and sequential products of large numbers whose sum is small are two numbers."""
    rng = np.random.default_rng(0)
    v = rng.normal(size=(256, 3)) / 160
    v, u = (jnp.asarray(a, jnp.float32) for a in (v - v.mean(0), 1e4 + rng.normal(size=(64, 256))))

    @jax.jit
    def made(v, u):
        def step(c, x):
            h = jnp.tanh(0.5 * c + x @ v)
            return h, h

        how = {"forward": pb.FixedPoint(certify=certify, fallback=False), "report": True}
        _, ys, report = pb.scan(step, jnp.zeros(3, jnp.float32), u, **how)
        return ys, report.forward

    ys, told = made(v, u)
    h, truth = np.zeros(3), []
    for x in np.asarray(u, np.float64) @ np.asarray(v, np.float64):
        truth.append(h := np.tanh(0.5 * h + x))
    error = np.abs(ys - np.stack(truth)).max() / (1 + np.abs(truth).max())
    assert error > 1e-4  # else there is nothing to tell
    assert error <= told.error + told.floor
    assert told.converged and told.status == pb.Status.UNCERTIFIED


@pytest.mark.parametrize("short", ["bfloat16", "float16"])
def test_what_is_rounded_to_less_inside_of_a_step_is_in_the_floor(short):
    eps = float(jnp.finfo(short).eps)

    @jax.jit
    def told(us):
        def step(c, x):
            h = jnp.tanh((c.astype(short) * 0.9).astype(c.dtype) + x)
            return h, h

        how = {"forward": pb.FixedPoint(fallback=False), "report": True}
        return pb.scan(step, jnp.zeros(4), us, **how)[2].forward

    found = told(jnp.asarray(np.random.default_rng(0).normal(size=(33, 4)) * 0.3))
    assert found.floor > eps / 8
    assert not found.converged or found.status == pb.Status.UNCERTIFIED


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_counts_and_flags_are_not_rounded(dtype):
    """A step may compare whole numbers, and what it makes of them is exact."""

    def step(c, x):
        count, h = c
        count = jnp.where(count + 1 >= 7, 0 * count, count + 1)
        h = jnp.where(x == 1, 0.0, jnp.tanh(0.5 * h + count @ jnp.ones(2, dtype)))
        return (count, h.astype(dtype)), h

    with jax.enable_x64(dtype == "float64"):
        flags = jnp.asarray(np.arange(30) % 5 == 0, dtype)
        first = jnp.zeros(2, dtype), jnp.zeros(2, dtype)
        *_, report = pb.scan(step, first, flags, forward=pb.FixedPoint(), report=True)
        assert report.forward.status == pb.Status.OK and not report.fell_back
        assert report.forward.floor <= 100 * jnp.finfo(dtype).eps


@pytest.mark.parametrize("short", ["bfloat16", "float16"])
def test_a_proof_takes_no_step_that_rounds_to_less(short):
    def step(c, x):
        h = jnp.tanh(c.astype(short).astype(c.dtype) * 0.9 + x)
        return h, h

    xs = jnp.ones((9, 4))
    with pytest.raises(NotImplementedError, match=rf"rounds float\d+ to {short}, which jumps"):
        pb.scan(step, jnp.zeros(4), xs, forward=pb.FixedPoint(certify="bound"))
