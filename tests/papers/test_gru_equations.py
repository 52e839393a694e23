"""The GRU of BPPSA, eq. 10, and its transposed Jacobian, eq. 11 of appendix E, in NumPy."""

import jax.numpy as jnp
import numpy as np

import parscan_bp as pb
from tests.papers.precision import TOLERANCE

HIDDEN, INPUTS = 5, 3


def sigmoid(a):
    return 1 / (1 + np.exp(-a))


def weights():
    rng = np.random.default_rng(0)
    names = [i + gate for i in "ih" for gate in "rzn"]
    matrices = {n: rng.normal(size=(HIDDEN, INPUTS if n[0] == "i" else HIDDEN)) for n in names}
    return matrices, {n: rng.normal(size=HIDDEN) for n in names}, rng.normal(size=(2, HIDDEN))


def equation_10(w, b, x, h):
    """The next state, and r, z, n and M that make it."""
    r = sigmoid(w["ir"] @ x + b["ir"] + w["hr"] @ h + b["hr"])
    z = sigmoid(w["iz"] @ x + b["iz"] + w["hz"] @ h + b["hz"])
    m = w["hn"] @ h + b["hn"]
    n = np.tanh(w["in"] @ x + b["in"] + r * m)
    return (1 - z) * n + z * h, (r, z, n, m)


def equation_11(w, b, x, h):
    """(d h_t / d h_t-1) transposed, term by term; a vector beside a matrix scales its columns."""
    _, (r, z, n, m) = equation_10(w, b, x, h)
    inside = w["hr"].T * (r * (1 - r) * m) + w["hn"].T * r
    return inside * ((1 - n**2) * (1 - z)) + w["hz"].T * (z * (1 - z) * (h - n)) + np.diag(z)


def cell_params(w, b):
    """As the cell takes them: gates side by side, rows of inputs."""
    beside = lambda of, i: jnp.concatenate([jnp.asarray(of[i + g].T) for g in "rzn"], -1)  # noqa: E731
    return {"wi": beside(w, "i"), "wh": beside(w, "h"), "bi": beside(b, "i"), "bh": beside(b, "h")}


def test_equation_11_is_the_derivative_of_equation_10():
    w, b, (x, h) = weights()
    x, small = x[:INPUTS], 1e-6 * np.eye(HIDDEN)
    rows = [(equation_10(w, b, x, h + e)[0] - equation_10(w, b, x, h - e)[0]) / 2e-6 for e in small]
    np.testing.assert_allclose(equation_11(w, b, x, h), np.stack(rows), atol=1e-9)


def test_the_cell_is_equation_10_and_its_jacobian_equation_11():
    w, b, (x, h) = weights()
    x = x[:INPUTS]
    params = cell_params(w, b)
    cell, (h, x) = pb.cells.GRU(), map(jnp.asarray, (h[None], x[None]))
    new, _ = cell(params, h, x)
    want, _ = equation_10(w, b, np.asarray(x[0]), np.asarray(h[0]))
    np.testing.assert_allclose(new[0], want, atol=TOLERANCE)
    stated = cell.jacobian(params, h, x, new).as_dense()
    want = equation_11(w, b, np.asarray(x[0]), np.asarray(h[0]))
    np.testing.assert_allclose(stated[0], want, atol=10 * TOLERANCE)
