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


@pytest.mark.parametrize("short", ["bfloat16", "float16"])
def test_a_proof_takes_no_step_that_rounds_to_less(short):
    def step(c, x):
        h = jnp.tanh(c.astype(short).astype(c.dtype) * 0.9 + x)
        return h, h

    xs = jnp.ones((9, 4))
    with pytest.raises(NotImplementedError, match=rf"rounds float\d+ to {short}, which jumps"):
        pb.scan(step, jnp.zeros(4), xs, forward=pb.FixedPoint(), certify="bound")
