"""Naumov's systems (13) to (24) as dense matrices in NumPy, against the library's solutions."""

import jax
import jax.numpy as jnp
import numpy as np

import parscan_bp as pb
from parscan_bp.operators import Dense
from tests.papers.precision import TOLERANCE

UNITS = 3


def slope(y):
    return 1 - np.tanh(y) ** 2


class Layers:
    """A feed-forward network z_k = tanh(W_k z_k-1 + b_k), and eq. 17's v, backwards."""

    def __init__(self, count):
        rng = np.random.default_rng(count)
        self.w = [None, *rng.normal(size=(count, UNITS, UNITS)) / 2]
        self.b = [None, *rng.normal(size=(count, UNITS))]
        self.z, self.y = [rng.normal(size=UNITS)], [None]
        for w, b in zip(self.w[1:], self.b[1:], strict=True):
            self.y.append(w @ self.z[-1] + b)
            self.z.append(np.tanh(self.y[-1]))
        self.ct = rng.normal(size=UNITS)
        self.v = [self.ct * slope(self.y[-1])]
        for k in range(count, 1, -1):
            self.v.append((self.w[k].T @ self.v[-1]) * slope(self.y[k - 1]))
        self.v = [self.w[1].T @ self.v[-1], *reversed(self.v)]


def matrix(diagonal, beside):
    """A block matrix: its diagonal, and {(row, column): block}."""
    size = len(diagonal) * UNITS
    out = np.zeros((size, size))
    for (row, column), block in {**{(k, k): d for k, d in enumerate(diagonal)}, **beside}.items():
        out[row * UNITS : (row + 1) * UNITS, column * UNITS : (column + 1) * UNITS] = block
    return out


def test_equations_18_and_19_are_both_passes_and_lambda_is_e_v():
    count = 5
    own, eye = Layers(count), np.eye(UNITS)
    down = {(k, k - 1): -own.w[k] for k in range(1, count + 1)}
    d = [eye, *(np.diag(y / np.tanh(y)) for y in own.y[1:])]
    forward = np.linalg.solve(matrix(d, down), np.concatenate([own.z[0], *own.b[1:]]))
    np.testing.assert_allclose(forward, np.concatenate(own.z), atol=1e-12)
    up = {(k - 1, k): -own.w[k].T for k in range(1, count + 1)}
    e = [eye, *(np.diag(1 / slope(y)) for y in own.y[1:])]
    backward = np.linalg.solve(matrix(e, up), np.concatenate([np.zeros(UNITS * count), own.ct]))
    np.testing.assert_allclose(backward, np.concatenate(own.v), atol=1e-12)
    # The library's unknowns are gradients with respect to z, E v here.
    operators = [
        Dense(jnp.asarray(w.T * slope(y))) for w, y in zip(own.w[1:], own.y[1:], strict=True)
    ]
    solvers = (pb.CyclicReduction(), pb.Blelloch(), pb.Jacobi(), pb.Richardson())
    solve = jax.jit(
        lambda operators, ct: [
            pb.solve(pb.Ragged(operators, [None] * count + [ct]), solver) for solver in solvers
        ]
    )
    for solver, found in zip(solvers, solve(operators, jnp.asarray(own.ct)), strict=True):
        for k, got in enumerate(found):
            want = e[k] @ own.v[k]
            np.testing.assert_allclose(got.ravel(), want, atol=TOLERANCE, err_msg=repr(solver))


def test_a_stale_diagonal_is_as_wrong_as_the_change_of_the_weights():
    """Eq. 18 with D of an earlier pass: the error is of first order, as that of doing nothing."""
    count = 5
    own = Layers(count)
    d = [np.eye(UNITS), *(np.diag(y / np.tanh(y)) for y in own.y[1:])]
    rhs = np.concatenate([own.z[0], *own.b[1:]])
    moved = np.random.default_rng(1).normal(size=(count, UNITS, UNITS))
    errors = []
    for size in (1e-2, 1e-4):
        new = [None, *(w + size * m for w, m in zip(own.w[1:], moved, strict=True))]
        z = [own.z[0]]
        for w, b in zip(new[1:], own.b[1:], strict=True):
            z.append(np.tanh(w @ z[-1] + b))
        down = {(k, k - 1): -new[k] for k in range(1, count + 1)}
        errors.append(np.abs(np.linalg.solve(matrix(d, down), rhs) - np.concatenate(z)).max())
    assert 50 < errors[0] / errors[1] < 200


def test_equation_24_is_the_gradient_of_a_deep_recurrent_network():
    """k layers over tau steps: one doubly bi-diagonal system, by every solver of `deep_rnn`."""
    k, tau = 3, 4
    rng = np.random.default_rng(0)
    w, u = rng.normal(size=(2, k + 1, UNITS, UNITS)) / 2
    b = rng.normal(size=(k + 1, UNITS))
    xs, cts = rng.normal(size=(2, tau, UNITS))
    z, y = np.zeros((2, tau + 1, k + 1, UNITS))
    for s in range(1, tau + 1):
        z[s, 0] = xs[s - 1]
        for j in range(1, k + 1):
            y[s, j] = w[j] @ z[s, j - 1] + u[j] @ z[s - 1, j] + b[j]
            z[s, j] = np.tanh(y[s, j])
    at = lambda s, j: (s - 1) * (k + 1) + j  # noqa: E731
    every = [(s, j) for s in range(1, tau + 1) for j in range(k + 1)]
    diagonal = [np.diag(1 / slope(y[s, j])) if j else np.eye(UNITS) for s, j in every]
    beside = {(at(s, j - 1), at(s, j)): -w[j].T for s, j in every if j}
    beside |= {(at(s - 1, j), at(s, j)): -u[j].T for s, j in every if j and s > 1}
    rhs = np.zeros((tau, k + 1, UNITS))
    rhs[:, k] = cts
    v = np.linalg.solve(matrix(diagonal, beside), rhs.ravel()).reshape(rhs.shape)

    def layer(j):
        def step(h, x):
            h = jnp.tanh(x @ w[j].T + h @ u[j].T + b[j])
            return h, h

        return step

    step, jacobian = pb.deep_rnn([layer(j) for j in range(1, k + 1)])
    solvers = (pb.CyclicReduction(), pb.Blelloch(), pb.Jacobi(), pb.ChunkedCorrections(2))
    h0 = tuple(jnp.zeros(UNITS) for _ in range(k))

    def loss(xs, solver):
        return jnp.vdot(pb.scan(step, h0, xs, solver=solver, jacobian=jacobian)[1], cts)

    gradients = jax.jit(lambda xs: [jax.grad(loss)(xs, solver) for solver in solvers])
    for solver, got in zip(solvers, gradients(jnp.asarray(xs)), strict=True):
        np.testing.assert_allclose(got, v[:, 0], atol=10 * TOLERANCE, err_msg=repr(solver))
