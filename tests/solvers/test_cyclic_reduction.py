"""Cyclic reduction against the matrices of the paper, and its counted products."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parscan_bp as pb
from parscan_bp.operators import Dense
from parscan_bp.solvers import cyclic_reduction
from tests.family import jit_once


class Paper:
    """The systems (18) and (19) for l layers of n units, and the appendix's S, T, P, Q.

    The last row of S is printed with W^(l) D^(l-1)^-1 in the columns of l - 2 and l - 1; it is
    W^(l-1) D^(l-2)^-1.
    """

    def __init__(self, l, n):
        rng = np.random.default_rng(l)
        self.l, self.n = l, n
        self.w = [None, *rng.normal(size=(l, n, n))]
        eye = np.eye(n)
        self.d, self.e = (
            [eye, *(np.diag(rng.uniform(0.5, 2, n)) for _ in range(l))] for _ in range(2)
        )
        self.b, self.c = rng.normal(size=(2, (l + 1) * n))
        self.lower = self.blocks({(k, k): self.d[k] for k in range(l + 1)})
        self.lower += self.blocks({(k, k - 1): -self.w[k] for k in range(1, l + 1)})
        self.upper = self.blocks({(k, k): self.e[k] for k in range(l + 1)})
        self.upper += self.blocks({(k - 1, k): -self.w[k].T for k in range(1, l + 1)})

    def blocks(self, entries):
        n = self.n
        out = np.zeros(((self.l + 1) * n,) * 2)
        for (row, col), block in entries.items():
            out[row * n : (row + 1) * n, col * n : (col + 1) * n] = block
        return out

    def of_order(self, order):
        return self.blocks({(row, k): np.eye(self.n) for row, k in enumerate(order)})

    @property
    def odd(self):
        return range(1, self.l + 1, 2)

    @property
    def even(self):
        return range(0, self.l + 1, 2)

    def scaling_s(self):
        entries = {}
        for row, k in enumerate([*self.odd, *self.even]):
            entries[row, k] = np.eye(self.n)
            if k:
                entries[row, k - 1] = self.w[k] @ np.linalg.inv(self.d[k - 1])
        return self.blocks(entries)

    def scaling_t(self):
        entries = {}
        for row, k in enumerate([*self.even, *self.odd]):
            entries[row, k] = np.eye(self.n)
            if k < self.l:
                entries[row, k + 1] = self.w[k + 1].T @ np.linalg.inv(self.e[k + 1])
        return self.blocks(entries)


@pytest.mark.parametrize("l", [3, 5, 9])
def test_the_paper_s_matrices_decouple_both_systems(l):
    paper, n = Paper(l, 2), 2
    half = (l + 1) // 2 * n
    lower = paper.scaling_s() @ paper.lower @ paper.of_order([*paper.odd, *paper.even]).T
    upper = paper.scaling_t() @ paper.upper @ paper.of_order([*paper.even, *paper.odd]).T
    for matrix in (lower, upper):
        np.testing.assert_allclose(matrix[:half, half:], 0, atol=1e-12)
        np.testing.assert_allclose(matrix[half:, :half], 0, atol=1e-12)
    # B^(k) = W^(k) D^(k-1)^-1 W^(k-1), and C^(k)^T likewise from the other end.
    block = lambda m, row, col: m[row * n : (row + 1) * n, col * n : (col + 1) * n]  # noqa: E731
    for row, k in enumerate(paper.odd):
        np.testing.assert_allclose(block(lower, row, row), paper.d[k], atol=1e-12)
        if k > 1:
            want = -paper.w[k] @ np.linalg.inv(paper.d[k - 1]) @ paper.w[k - 1]
            np.testing.assert_allclose(block(lower, row, row - 1), want, atol=1e-12)
    for row, k in enumerate(paper.even[:-1]):
        want = -paper.w[k + 1].T @ np.linalg.inv(paper.e[k + 1]) @ paper.w[k + 2].T
        np.testing.assert_allclose(block(upper, row, row + 1), want, atol=1e-12)


@pytest.mark.parametrize("l", [3, 7])
def test_a_level_makes_the_products_of_the_paper(l, monkeypatch):
    """lambda = E v: A_t = W^(t)^T E^(t)^-1, and the first level A_t A_(t+1) = C^(t+1)^T E^-1."""
    paper, n = Paper(l, 2), 2
    inverse = [np.linalg.inv(e) for e in paper.e]
    maps = [paper.w[k].T @ inverse[k] for k in range(1, l + 1)]
    products = []

    def composed(first, second):
        made = compose(first, second)
        products.append(np.asarray(made.as_dense()))
        return made

    compose = cyclic_reduction.compose
    monkeypatch.setattr(cyclic_reduction, "compose", composed)
    g = [jnp.asarray(v) for v in paper.c.reshape(l + 1, n)]
    system = pb.Ragged([Dense(jnp.asarray(a)) for a in maps], g)
    lambdas = pb.CyclicReduction().run_ragged(system)
    upper = paper.scaling_t() @ paper.upper @ paper.of_order([*paper.even, *paper.odd]).T
    block = lambda row, col: -upper[row * n : (row + 1) * n, col * n : (col + 1) * n]  # noqa: E731
    places = {k: row for row, k in enumerate([*paper.even, *paper.odd])}
    for t in range(l - 1):
        want = block(places[t], places[t + 2]) @ inverse[t + 2]
        np.testing.assert_allclose(products[t], want, rtol=1e-5, atol=1e-5)
    # The two systems of (31), each solved by itself, are the whole.
    solved = np.linalg.solve(upper, paper.scaling_t() @ paper.c)
    v = (paper.of_order([*paper.even, *paper.odd]).T @ solved).reshape(l + 1, n)
    want = np.stack([e @ own for e, own in zip(paper.e, v, strict=True)])
    np.testing.assert_allclose(np.stack(lambdas), want, rtol=1e-4, atol=1e-4)


def count(monkeypatch, solver, system):
    """Matrix-matrix and matrix-vector products that a solver makes."""
    made = {"matrix": 0, "vector": 0}
    compose, matvec = cyclic_reduction.compose, Dense.matvec

    def composed(first, second):
        made["matrix"] += second.length or 1
        return compose(first, second)

    def pushed(self, v):
        made["vector"] += v.shape[0] if v.ndim > 1 else 1
        return matvec(self, v)

    monkeypatch.setattr(cyclic_reduction, "compose", composed)
    monkeypatch.setattr(Dense, "matvec", pushed)
    if isinstance(system, pb.Ragged):
        solver.run_ragged(system)
    else:
        solver.run(system, jnp.zeros(2))
    monkeypatch.undo()
    return made["matrix"], made["vector"]


@pytest.mark.parametrize("n", [1, 2, 3, 8, 9])
def test_products_are_those_that_are_stated(n, monkeypatch):
    solver = pb.CyclicReduction()
    stated = solver.complexity(n)
    a = jnp.asarray(np.random.default_rng(n).normal(size=(n, 2, 2)))
    matrix, vector = count(monkeypatch, solver, pb.Uniform(Dense(a), jnp.ones((n + 1, 2))))
    # Beside the solver's own, the g of each step is pushed through its map.
    assert (matrix, vector - n) == (stated.matrix_products, stated.vector_products)
    levels = int(np.ceil(np.log2(n))) if n > 1 else 0
    assert stated.steps == levels + 1
    assert stated.matrix_products <= n * levels


def test_half_the_levels_of_the_modified_blelloch_scan_for_more_products():
    ours, theirs = (s.complexity(1024) for s in (pb.CyclicReduction(), pb.Blelloch()))
    assert ours.steps == 11 and theirs.steps == 20
    assert theirs.matrix_products < 1024 < 8 * 1024 < ours.matrix_products


@pytest.mark.parametrize("sizes", [(3, 2), (2, 5, 3), (3, 1, 4, 2, 5), (1, 2, 3, 4, 5, 6, 7, 8)])
def test_layers_of_different_sizes_and_missing_cotangents(sizes):
    rng = np.random.default_rng(len(sizes))
    a = [rng.normal(size=pair) for pair in itertools.pairwise(sizes)]
    g = [rng.normal(size=s) if k % 2 else None for k, s in enumerate(sizes[:-1])]
    g.append(rng.normal(size=sizes[-1]))
    want = [g[-1]]
    for matrix, own in zip(reversed(a), reversed(g[:-1]), strict=True):
        want.append(matrix @ want[-1] + (0 if own is None else own))
    given = [None if v is None else jnp.asarray(v) for v in g]
    operators = [Dense(jnp.asarray(m)) for m in a]
    solvers, system = (pb.CyclicReduction(), pb.CyclicReduction(scaled=True)), (operators, given)
    for got in jit_once(lambda system: [pb.solve(pb.Ragged(*system), s) for s in solvers])(system):
        for x, y in zip(got, reversed(want), strict=True):
            np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-5)


def test_every_level_is_one_batched_operation():
    """The program grows with the logarithm of the length."""

    def equations(n):
        def run(a, g):
            return pb.CyclicReduction().run(pb.Uniform(Dense(a), g), g[0])

        jaxpr = jax.make_jaxpr(run)(jnp.ones((n, 2, 2)), jnp.ones((n + 1, 2)))
        return str(jaxpr).count("dot_general")

    assert equations(64) - equations(32) == equations(32) - equations(16) > 0
