"""Settings that forbid promotion of types or ranks: nothing is promoted by ours either."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import parscan_bp as pb

SOLVERS = (None, pb.Sweep(), pb.Sweep(recompute=False), pb.Chunked(), pb.Blelloch(scaled=True))


def _gradient(scan, w):
    h, xs = jnp.ones((200, 2), w.dtype), jnp.ones((3, 200, 2), w.dtype)
    step = lambda c, x: (jnp.tanh(c @ w + x), c)  # noqa: E731
    return jax.grad(lambda w: sum(map(jnp.sum, scan(step, h, xs))))(w)


@pytest.mark.parametrize("solver", SOLVERS, ids=str)
@pytest.mark.parametrize(
    "setting",
    [
        lambda: jax.numpy_dtype_promotion("strict"),
        lambda: jax.numpy_rank_promotion("raise"),
    ],
    ids=["types", "ranks"],
)
def test_nothing_is_promoted(setting, solver):
    with jax.enable_x64(True), setting():
        w = jnp.asarray([[0.3, 0.1], [-0.2, 0.4]], jnp.float64)
        got, want = (
            _gradient(scan, w) for scan in (functools.partial(pb.scan, solver=solver), lax.scan)
        )
    np.testing.assert_allclose(got, want, rtol=1e-9)
