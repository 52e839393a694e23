"""Loops that fill a buffer of the carry row by row: what is an output, and what must not be."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import parscan_bp as pb
from tests.family import together
from tests.within.derivatives_of import derivatives_of, slopes_of

ROWS = jnp.asarray(np.random.default_rng(1).normal(size=(7, 3)))
A = jnp.asarray(0.4)


def _loop(body, first=0, last=7):
    """A function of the buffer: ``body(a, k, rows)`` makes the next."""
    return lambda a, rows: lax.fori_loop(first, last, functools.partial(body, a), rows)


def _step(a, row):
    return jnp.sin(a * row) + a


def _by_slices(a, k, rows):
    row = _step(a, lax.dynamic_slice(rows, (k - 1, 0), (1, 3)))
    return lax.dynamic_update_slice(rows, row, (k, 0))


def _in_order(order):
    """A scan whose steps write the rows in some order, which are inputs."""

    def f(a, rows, reverse=False):
        def step(rows, k):
            return rows.at[k].set(_step(a, rows[k]) + k), rows[k]

        return lax.scan(step, rows, jnp.asarray(order), reverse=reverse)

    return f


def _two_counters(a, rows):
    def body(k, state):
        down, rows = state
        return down - 1, rows.at[down].set(a * rows[down] + k)

    return lax.fori_loop(0, 5, body, (5, rows))[1]


def _two_buffers(a, rows):
    def body(k, state):
        u, v = state
        return u.at[k + 1].set(_step(a, v[k])), v.at[k + 1].set(_step(a, u[k]) + v[k])

    return lax.fori_loop(0, 6, body, (rows, 2 * rows))


FILLED = {
    "set": _loop(lambda a, k, rows: rows.at[k].set(a * k)),
    "one behind": _loop(lambda a, k, rows: rows.at[k + 1].set(_step(a, rows[k])), 0, 6),
    "two behind": _loop(lambda a, k, u: u.at[k].set(_step(a, u[k - 1]) - u[k - 2]), 2),
    "ahead": _loop(lambda a, k, rows: rows.at[k].set(_step(a, rows[k + 1])), 0, 6),
    "own, and added to": _loop(lambda a, k, rows: rows.at[k].add(_step(a, rows[k]))),
    "multiplied": _loop(lambda a, k, rows: rows.at[k].multiply(a + k)),
    "by slices": _loop(_by_slices, 1),
    "one number of a row": _loop(lambda a, k, rows: rows.at[k, 1].set(a * rows[k - 1, 2]), 1),
    "part of a row": _loop(lambda a, k, rows: rows.at[k, :2].set(rows[k, 1:] * a)),
    "twice": _loop(lambda a, k, u: (v := u.at[k].set(a * u[k])).at[k, 0].add(v[k, 1])),
    "columns": lambda a, rows: _loop(lambda a, k, u: u.at[:, k].set(_step(a, u[:, k])))(a, rows.T),
    "from the end": _loop(lambda a, k, rows: rows.at[6 - k].set(_step(a, rows[6 - k]))),
    "negative": _loop(lambda a, k, rows: rows.at[-1 - k].set(a * k)),
    "as it was before": _loop(lambda a, k, u: u.at[k].set(a * u[k]).at[k].add(u[k])),
    "any order": _in_order([3, 0, 6, 1]),
    "reverse": functools.partial(_in_order([1, 2, 3, 5]), reverse=True),
    "two counters": _two_counters,
    "two buffers": _two_buffers,
    "modulo": _loop(lambda a, k, rows: rows.at[(3 * k) % 7].set(a * k)),
}


LEFT = {
    "the same row twice": _loop(lambda a, k, rows: rows.at[k // 2].add(a * k)),
    "a row that data choose": _loop(lambda a, k, u: u.at[jnp.argmax(u[0]) + k].set(a * k)),
    "read as a whole": _loop(lambda a, k, rows: rows.at[k].set(rows.mean(0) * a)),
    "rows of other steps": _loop(lambda a, k, u: u.at[k].set(a * u[(k * k) % 7])),
    "outside": _loop(lambda a, k, rows: rows.at[k + 3].set(a * k)),
    "a row at a fixed place": _loop(lambda a, k, u: u.at[k].set(_step(a, u[0]) + k), 1),
    "two that begin with one": lambda a, rows: lax.scan(
        lambda u, k: (u.at[k].set(a * u[k]), u.at[k].add(a)), rows, jnp.arange(7)
    ),
}


@pytest.mark.parametrize("name", [*FILLED, *LEFT])
def test_values_and_derivatives(name, request):
    def case(name):
        f = {**FILLED, **LEFT}[name]
        both, way = (pb.replace_scans(f), f), derivatives_of if name in FILLED else slopes_of
        return lambda *args: [way(g, *args) for g in both], (A, ROWS)

    got, expected = together(request, case)
    for have, want in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(have, want, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", ["one behind", "part of a row", "reverse", "two buffers"])
def test_values_to_the_last_bit(name):
    f = FILLED[name]
    for have, want in zip(
        jax.tree.leaves(pb.replace_scans(f)(A, ROWS)), jax.tree.leaves(f(A, ROWS)), strict=True
    ):
        np.testing.assert_array_equal(have, want)


@pytest.mark.parametrize("name", FILLED)
def test_what_is_an_output(name):
    (scan,) = pb.explain_within(FILLED[name], A, ROWS).scans
    buffers = [k for k, carry in enumerate(scan.carry) if carry.endswith(("[7,3]", "[3,7]"))]
    assert list(scan.buffers) == buffers and buffers
    assert "outputs made of what the steps write" in str(scan)


@pytest.mark.parametrize("name", LEFT)
def test_what_is_none(name):
    (scan,) = pb.explain_within(LEFT[name], A, ROWS).scans
    assert scan.buffers == ()


def test_a_function_that_is_applied_to_a_row():
    """JAX has no derivative of it."""
    f = _loop(lambda a, k, rows: rows.at[k].apply(jnp.sin))
    np.testing.assert_array_equal(pb.replace_scans(f)(A, ROWS), f(A, ROWS))


def test_a_filled_buffer_costs_its_derivative_nothing():
    """Of 2,000 rows of 8 numbers, the derivative keeps no more than them, once."""

    def f(a, h):
        def body(k, state):
            h, rows = state
            h = jnp.tanh(a @ h)
            return h, rows.at[k].set(h)

        return lax.fori_loop(0, 2000, body, (h, jnp.zeros((2000, 8))))[1]

    (scan,) = pb.explain_within(f, jnp.eye(8), jnp.ones(8), solver=pb.Sweep()).scans
    rows = 2000 * 8 * A.dtype.itemsize
    assert rows <= scan.stored < 1.2 * rows < scan.stored_by_lax  # and the counter
