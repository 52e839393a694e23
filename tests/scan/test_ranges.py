"""Slopes and cotangents at the ends of the range: zero or finite where `lax.scan` is so.

Products of powers of two are exact in every order, unless a partial product leaves the range. So
cotangents are equal bit by bit wherever the order is that of `lax.scan`.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import parscan_bp as pb

SOLVERS = {
    "Sweep": {"solver": pb.Sweep()},
    "kept": {"solver": pb.Sweep(recompute=False)},
    "chunks": {"solver": pb.Sweep(chunk=2)},
    "None": {},
}
WIDTH, LENGTH = 24, 5
COTANGENTS = (0.0, 1.0, 2.0**-100, 2.0**100, 2.0**127, 2.0**-126, np.inf, np.nan)


@functools.cache
def _pulled(step, name=None):
    """The cotangents of the carry and of the inputs, by a solver or by `lax.scan`."""
    scan = lax.scan if name is None else functools.partial(pb.scan, **SOLVERS[name])

    @jax.jit
    def pulled(carry, xs, ct):
        return jax.tree.leaves(jax.vjp(lambda *v: scan(step, *v)[0], carry, xs)[1](ct))

    return pulled


def _in_range(wanted):
    """Classes that have to be equal: zero, finite, not finite."""
    return np.where(np.isfinite(wanted), np.where(wanted == 0, 0, 1), 2)


def _powers(key, shape):
    return 2.0 ** jax.random.randint(key, shape, -100, 101).astype(jnp.float32)


def _chain(h, x):
    """Four slopes; the last result is as large as the carry, so that no value leaves the range."""
    for slope in x:
        h = h * slope
    return h, None


def _chain_over(h, x):
    """The same, divided instead."""
    for slope in x:
        h = h / slope
    return h, None


def _two_ways(h, x):
    """Chains that meet; of the second, only a part of the slopes counts."""
    u, a = h
    b = u * x[0] * x[1]
    return (b * x[2], jnp.where(x[3] > 1, a * x[3], a) * x[2]), None


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("step", [_chain, _chain_over, _two_ways])
def test_cotangents_by_powers_of_two_are_those_of_lax_scan(step, name):
    keys = jax.random.split(jax.random.key(0), 2)
    xs = list(_powers(keys[0], (4, LENGTH, WIDTH)))
    carry = jnp.zeros(WIDTH, jnp.float32)
    ct = jax.random.permutation(keys[1], jnp.tile(jnp.array(COTANGENTS, jnp.float32), 3))
    if step is _two_ways:
        carry, ct = (carry, carry), (ct, ct[::-1])
    pairs = zip(_pulled(step, name)(carry, xs, ct), _pulled(step)(carry, xs, ct), strict=True)
    for got, wanted in pairs:
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("name", SOLVERS)
def test_slopes_that_leave_the_range_together(name):
    """Under- and overflow, also of a zero cotangent; and what is infinite before the last slope."""
    slopes = [[1e-25, 1e25, 1e25, 1e-30], [1e-25, 1e25, 1e25, 1e25], [1e30, 1e-30, 1e-30, 1e25]]
    xs = [jnp.broadcast_to(jnp.array(row, jnp.float32), (2, 4)) for row in slopes]
    cts = jnp.array([1e20, 1e-20, 0.0, 1e30], jnp.float32)
    args = jnp.zeros(4, jnp.float32), xs, cts
    for got, wanted in zip(_pulled(_chain, name)(*args), _pulled(_chain)(*args), strict=True):
        np.testing.assert_array_equal(_in_range(got), _in_range(wanted))
        np.testing.assert_allclose(got, wanted, rtol=1e-5)


def _gated(h, x):
    """Gates of one's own, without weights."""
    r, z = jax.nn.sigmoid(x[0] + h), jax.nn.sigmoid(x[1] - h)
    return (1 - z) * jnp.tanh(x[2] + r * h) + z * h, None


def _nearly_closed(h, x):
    """Three gates in a row, each of which may be nearly closed."""
    gates = [jax.nn.sigmoid(v + s * h) for v, s in zip(x[1:], (6, 1, -1), strict=True)]
    return h * 0.5 + jnp.tanh(x[0]) * functools.reduce(jnp.multiply, gates), None


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16])
@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize(("step", "inputs"), [(_gated, 3), (_nearly_closed, 4)])
def test_nearly_closed_gates(step, inputs, name, dtype):
    """With a loss scale where gradients of 16 bits would vanish."""
    keys = jax.random.split(jax.random.key(1), 2)
    wide = 30.0 if dtype == jnp.float32 else 7.0
    draw = jax.random.uniform(keys[0], (inputs, LENGTH, WIDTH), minval=-wide, maxval=wide)
    xs, carry = list(draw.astype(dtype)), jnp.full(WIDTH, -0.1, dtype)
    scales = [0.0, 1.0, 2.0**15] if dtype == jnp.float16 else [0.0, 1.0, 1e30]
    for scale in scales:
        ct = jnp.full(WIDTH, scale, dtype)
        pairs = zip(_pulled(step, name)(carry, xs, ct), _pulled(step)(carry, xs, ct), strict=True)
        for got, wanted in pairs:
            np.testing.assert_array_equal(_in_range(got), _in_range(wanted))
            np.testing.assert_allclose(got, wanted, rtol=1e3 * float(jnp.finfo(dtype).eps))


CELLS = {
    "GRU": pb.cells.GRU(),
    "LSTM": pb.cells.LSTM(),
    "Elman": pb.cells.Elman(),
    "relu": pb.cells.Elman("relu"),
    "MinGRU": pb.cells.MinGRU(),
}


@pytest.mark.parametrize(
    ("name", "solver"),
    [*((name, "Sweep") for name in CELLS), ("GRU", "kept"), ("LSTM", "kept")],
)
def test_cells_with_closed_gates_and_large_cotangents(name, solver):
    """Slopes of closed gates, multiplied by one another, would vanish."""
    cell, hidden = CELLS[name], 3
    keys = jax.random.split(jax.random.key(0), 3)
    params = jax.tree.map(lambda a: 0.1 * a, cell.init(keys[0], 2, hidden))
    bias = next(k for k in ("bi", "b") if k in params)
    closed = jnp.array([0.0, -30.0, -60.0, 30.0])
    params[bias] = jax.random.choice(keys[1], closed, params[bias].shape)
    carry, xs = cell.initial_carry((), hidden), jax.random.normal(keys[2], (LENGTH, 2))
    carry = jax.tree.map(lambda c: c + 0.5, carry)
    step = functools.partial(cell, params)
    for scale in (0.0, 1.0, 1e25, jnp.inf):
        ct = jax.tree.map(lambda c, s=scale: jnp.full_like(c, s), carry)
        pairs = zip(_pulled(step, solver)(carry, xs, ct), _pulled(step)(carry, xs, ct), strict=True)
        for got, wanted in pairs:
            np.testing.assert_array_equal(_in_range(got), _in_range(wanted))
            if scale != jnp.inf:
                np.testing.assert_allclose(got, wanted, rtol=1e-3)
