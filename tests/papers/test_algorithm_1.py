"""BPPSA's Algorithm 1 as it is printed, in NumPy, against eq. 3, the library and section 3.6."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parscan_bp as pb
from bench.paper.vgg11 import schedules
from parscan_bp.operators import Dense
from tests.papers.precision import TOLERANCE

IDENTITY = None
LENGTHS = [1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 21, 33]
SOLVERS = [
    pb.Sweep(),
    *(pb.Blelloch(k) for k in (None, 0, 1, 2, 3)),
    pb.CyclicReduction(),
    pb.Planned(),
]


def combine(a, b):
    """A ⋄ B = B A."""
    return b if a is IDENTITY else b @ a


def pairs(n, d):
    """The positions l, r of a level."""
    starts = range(0, n - 2**d + 1, 2 ** (d + 1))
    return [(i + 2**d - 1, min(i + 2 ** (d + 1) - 1, n)) for i in starts]


def algorithm_1(array):
    """The scanned array, and for each level where it multiplied matrices: the r of the up-sweep."""
    a, n = list(array), len(array) - 1
    depth, products = math.ceil(math.log2(n + 1)), []

    def multiplies(left, right):
        return all(part is not IDENTITY and part.ndim == 2 for part in (left, right))

    for d in range(depth - 1):
        products.append([r for l, r in pairs(n, d) if multiplies(a[l], a[r])])
        for l, r in pairs(n, d):
            a[r] = combine(a[l], a[r])
    a[n] = IDENTITY
    for d in reversed(range(depth)):
        products.append([r for l, r in pairs(n, d) if multiplies(a[r], a[l])])
        for l, r in pairs(n, d):
            a[l], a[r] = a[r], combine(a[r], a[l])
    return a, products


def chain(n):
    """Jacobians of layers 1 to n, of different sizes, and the gradient of the last output."""
    rng = np.random.default_rng(n)
    sizes = rng.integers(1, 6, n + 1)
    jacobians = [rng.normal(size=(b, a)) / 2 for a, b in itertools.pairwise(sizes)]
    return jacobians, rng.normal(size=sizes[-1])


def equation_3(jacobians, gradient):
    """The gradients of x_n, ..., x_0."""
    found = [gradient]
    for jacobian in reversed(jacobians):
        found.append(jacobian.T @ found[-1])
    return found


@pytest.mark.parametrize("n", LENGTHS)
def test_it_is_equation_3(n):
    jacobians, gradient = chain(n)
    scanned, products = algorithm_1([gradient, *(j.T for j in reversed(jacobians))])
    assert scanned[0] is IDENTITY
    for got, want in zip(scanned[1:], equation_3(jacobians, gradient), strict=False):
        np.testing.assert_allclose(got, want, atol=1e-13)
    depth = math.ceil(math.log2(n + 1))
    assert len(products) == 2 * depth - 1
    assert not any(products[depth - 1 :]), "only the up-sweep multiplies matrices"
    # What ends at a[n] is overwritten by the identity: the bench's steps leave it out.
    kept = sum(r < n for level in products for r in level)
    assert kept == sum(step.kind == schedules.PRODUCT for step in schedules.truncated(n, depth))


@pytest.mark.parametrize("n", LENGTHS)
def test_the_library_s_ragged_solvers_are(n):
    jacobians, gradient = chain(n)
    operators = [Dense(jnp.asarray(j.T)) for j in jacobians]

    @jax.jit
    def solve(operators, gradient):
        system = pb.Ragged(operators, [None] * n + [gradient])
        return [pb.solve(system, solver) for solver in SOLVERS]

    want = equation_3(jacobians, gradient)[::-1]
    for solver, found in zip(SOLVERS, solve(operators, jnp.asarray(gradient)), strict=True):
        for got, right in zip(found, want, strict=True):
            np.testing.assert_allclose(got.ravel(), right, atol=TOLERANCE, err_msg=repr(solver))


def steps(n, workers):
    """Of Algorithm 1 over n + 1 elements: so many pairs of a level at once as there are workers."""
    depth = math.ceil(math.log2(n + 1))
    levels = [*range(depth - 1), *reversed(range(depth))]
    return sum(math.ceil(len(pairs(n, d)) / workers) for d in levels)


@pytest.mark.parametrize("n", [15, 63, 1023, 16383])
def test_equations_6_and_7_count_its_steps(n):
    """S = Theta(n/p + log p) and W = Theta(n): simulated, and as the library states its own."""
    assert steps(n, n + 1) == 2 * math.ceil(math.log2(n + 1)) - 1
    assert n <= steps(n, 1) <= 2 * n
    for workers in (2, 16, 256, 4096):
        if workers < n:
            assert 1 <= steps(n, workers) / (n / workers + math.log2(workers)) <= 2.1
    # The library's array has the n gradients between the Jacobians besides: a pair at each place.
    stated = pb.Blelloch().complexity(n)
    assert stated.steps == 2 * math.ceil(math.log2(n))
    assert stated.matrix_products <= n and stated.vector_products <= 2 * n
