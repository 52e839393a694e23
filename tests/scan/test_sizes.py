"""Sizes beside those at which XLA compiles other programs, optimised as for users.

What its releases got wrong began with a number of rows, or of bytes (jax#39103: 16,385 rows;
jax#40101: 480 bytes): here are rows and steps on both sides of 2^14, 2^15 and 2^16, and rows of
some hundred bytes.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parscan_bp as pb

OPTIMISED = {"xla_backend_optimization_level": 3}
SIZES = [2**k + more for k in (14, 15, 16) for more in (-1, 1)]
SOLVERS = [None, pb.Sweep(), pb.Sweep(recompute=False), pb.Chunked(chunks=2), pb.Blelloch()]


def check(length, rows, width, solver):
    """The gradient of a recurrence, against its pullback in double precision, entry by entry."""
    random = np.random.default_rng(length + rows)
    # In single precision: NumPy starts from the same numbers.
    w = np.float32(random.normal(size=(width, width)) / width**0.5 / 2)
    h0 = np.float32(random.normal(size=(rows, width)))
    xs = np.float32(random.normal(size=(length, rows, width)))

    def loss(w, h0, xs):
        def step(h, x):
            h = jnp.tanh(h @ w + x)
            return h, h

        return jnp.sum(pb.scan(step, h0, xs, solver=solver)[1] ** 2)

    got = jax.jit(jax.grad(loss, (0, 1, 2)), compiler_options=OPTIMISED)(w, h0, xs)
    w, h0, xs = (np.float64(a) for a in (w, h0, xs))
    hs = [h0]
    for x in xs:
        hs.append(np.tanh(hs[-1] @ w + x))
    w_ct, ct, x_cts = np.zeros_like(w), np.zeros_like(h0), np.zeros_like(xs)
    for t in reversed(range(length)):
        x_cts[t] = (ct + 2 * hs[t + 1]) * (1 - hs[t + 1] ** 2)
        w_ct += hs[t].T @ x_cts[t]
        ct = x_cts[t] @ w.T
    # A sum over all rows loses more than one row.
    np.testing.assert_allclose(got[0], w_ct, rtol=1e-3, atol=1e-5 * np.max(np.abs(w_ct)))
    for ours, right in zip(got[1:], (ct, x_cts), strict=True):
        np.testing.assert_allclose(ours, right, rtol=1e-4, atol=1e-5)


def each(sizes):
    """Each size and solver; of every run of the tests, two of each."""
    daily = set(zip(sizes[1::2], SOLVERS[1::2], strict=False))
    return [
        pytest.param(size, s, marks=() if (size, s) in daily else pytest.mark.slow)
        for size in sizes
        for s in SOLVERS
    ]


@pytest.mark.parametrize(("rows", "solver"), each(SIZES), ids=repr)
def test_rows(rows, solver):
    check(3, rows, 3, solver)


@pytest.mark.parametrize(("length", "solver"), each(SIZES), ids=repr)
def test_steps(length, solver):
    check(length, 1, 2, solver)


@pytest.mark.parametrize(("width", "solver"), each([63, 64, 65, 119, 121, 127, 129]), ids=repr)
def test_bytes_of_a_row(width, solver):
    check(40, 1, width, solver)
