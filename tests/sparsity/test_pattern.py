"""Patterns: what they hold, that equal ones are one, and what they refuse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

from parscan_bp.sparsity import Pattern


def random_mask(seed, rows, cols, density=0.3):
    return np.random.default_rng(seed).random((rows, cols)) < density


@pytest.mark.parametrize("shape", [(1, 1), (4, 7), (7, 4), (0, 3), (3, 0)])
def test_against_scipy(shape):
    mask = random_mask(0, *shape)
    pattern, want = Pattern.from_mask(mask), sp.csr_matrix(mask)
    np.testing.assert_array_equal(pattern.indptr, want.indptr)
    np.testing.assert_array_equal(pattern.indices, want.indices)
    np.testing.assert_array_equal(pattern.as_mask(), mask)
    np.testing.assert_array_equal(pattern.row_counts, mask.sum(axis=1))
    np.testing.assert_array_equal(pattern.column_counts, mask.sum(axis=0))
    assert pattern.nnz == mask.sum() == round(pattern.fill * mask.size)
    turned, order = pattern.transposed
    np.testing.assert_array_equal(turned.as_mask(), mask.T)
    np.testing.assert_array_equal(turned.indices, pattern.rows[np.asarray(order)])


@pytest.mark.parametrize("diagonal", [False, True])
def test_expand(diagonal):
    mask = random_mask(1, 3, 4, density=0.7)
    pattern = Pattern.from_mask(mask)
    size = (2, 2) if diagonal else (2, 3)
    block = np.eye(2) if diagonal else np.ones(size)
    larger, order = pattern.expand(*size, diagonal=diagonal)
    np.testing.assert_array_equal(larger.as_mask(), np.kron(mask, block) > 0)
    numbers = np.arange(1, pattern.nnz * (2 if diagonal else 6) + 1)
    dense = np.zeros(larger.shape)
    dense[larger.rows, larger.indices] = numbers[np.asarray(order)]
    blocks = numbers.reshape(pattern.nnz, *size[: 1 if diagonal else 2])
    for k, (r, c) in enumerate(zip(pattern.rows, pattern.indices, strict=True)):
        want = np.diag(blocks[k]) if diagonal else blocks[k]
        got = dense[r * size[0] : (r + 1) * size[0], c * size[1] : (c + 1) * size[1]]
        np.testing.assert_array_equal(got, want)


def test_expanded_entries_that_keep_their_places_need_no_order():
    larger, order = Pattern.diagonal(3).expand(2, 2)
    assert order is None
    np.testing.assert_array_equal(larger.as_mask(), np.kron(np.eye(3), np.ones((2, 2))) > 0)


def test_equal_patterns_are_one_static_argument():
    one, two = (Pattern.from_mask(random_mask(2, 5, 5)) for _ in range(2))
    other = Pattern.from_mask(random_mask(3, 5, 5))
    assert one == two != other
    assert hash(one) == hash(two)
    assert one != "a pattern" and str(one) == f"Pattern(5x5, nnz={one.nnz})"
    traces = []
    f = jax.jit(lambda pattern, x: traces.append(pattern) or x, static_argnums=0)
    f(one, jnp.ones(2)), f(two, jnp.ones(2))
    assert len(traces) == 1
    with pytest.raises(ValueError, match="read-only"):
        one.indices[0] = 1


def test_coordinates_made_while_tracing_are_not_tracers():
    pattern = Pattern.diagonal(3)
    jax.jit(lambda x: x[pattern.coordinates[0]])(jnp.ones(3))
    assert all(isinstance(x, jax.Array) for x in pattern.coordinates)
    assert not any(isinstance(x, jax.core.Tracer) for x in pattern.coordinates)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Pattern((2, 2), [0, 1], [0]), r"indptr: got shape \(2,\); 3 ascending offsets"),
        (lambda: Pattern((2, 2), [0, 2, 1], [0]), "indptr: .* ascending"),
        (lambda: Pattern((1, 2), [0, 2], [0]), "indices: got shape .* ends in 2 entries"),
        (lambda: Pattern((1, 2), [0, 1], [2]), "a column lies outside the matrix of 1x2"),
        (lambda: Pattern((1, 2), [0, 2], [1, 0]), "do not ascend"),
        (lambda: Pattern((1, 2), [0, 2], [1, 1]), "do not ascend"),
        (
            lambda: Pattern.from_coordinates([0, 0], [1, 1], (2, 2)),
            r"\(0, 1\) is given twice",
        ),
        (lambda: Pattern.from_mask([1, 0]), r"mask: got shape \(2,\); a matrix is wanted"),
        (lambda: Pattern.from_coordinates([2], [0], (2, 2)), "inside 2x2 per entry"),
        (lambda: Pattern.from_coordinates([0], [0, 1], (2, 2)), "rows, cols: got shapes"),
    ],
)
def test_mistakes(build, message):
    with pytest.raises(ValueError, match=message):
        build()
