"""Products planned once: against scipy, entry by entry and block by block."""

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import strategies as st

from parscan_bp.sparsity import (
    Pattern,
    count_products,
    multiply,
    plan,
    plan_blocks,
    plan_product,
)

few = hypothesis.settings(max_examples=12, deadline=None, derandomize=True, database=None)


def pair(seed, rows, middle, cols, density):
    rng = np.random.default_rng(seed)
    return [Pattern.from_mask(rng.random(s) < density) for s in ((rows, middle), (middle, cols))]


def integers(seed, *shape):
    return np.random.default_rng(seed).integers(1, 5, shape)


SIZES = st.integers(0, 9)


@few
@hypothesis.given(st.integers(0, 99), SIZES, SIZES, SIZES, st.sampled_from([0.1, 0.4, 1.0]))
def test_patterns_multiply(seed, rows, middle, cols, density):
    a, b = pair(seed, rows, middle, cols, density)
    want = a.as_mask().astype(int) @ b.as_mask().astype(int)
    np.testing.assert_array_equal(multiply(a, b).as_mask(), want > 0)
    assert count_products(a, b) == want.sum()


@few
@hypothesis.given(st.integers(0, 99), SIZES, SIZES, SIZES, st.sampled_from([0.1, 0.4, 1.0]))
def test_entries(seed, rows, middle, cols, density):
    """By NumPy instead of XLA: a plan does not care, and compiling a program takes long."""
    a, b = pair(seed, rows, middle, cols, density)
    x, y = integers(seed, a.nnz), integers(seed + 1, b.nnz)
    made = plan_product(a, b)
    with jax.disable_jit():
        got = np.asarray(made.sum(lambda i, j: jnp.asarray(x)[i] * jnp.asarray(y)[j], axis=-1))
    want = sp.csr_matrix((x, a.indices, a.indptr), a.shape) @ sp.csr_matrix(
        (y, b.indices, b.indptr), b.shape
    )
    dense = np.zeros(made.pattern.shape)
    dense[made.pattern.rows, made.pattern.indices] = got
    np.testing.assert_array_equal(dense, want.toarray())
    assert made.nbytes == sum(leaf.nbytes for leaf in jax.tree.leaves(made))


def test_sums_of_one_to_four_terms_in_one_program():
    full = np.tril(np.ones((4, 4), bool))
    a, b = Pattern.from_mask(full), Pattern.from_mask(full)
    made, x, y = plan_product(a, b), integers(0, a.nnz), integers(1, b.nnz)
    assert [left.shape[0] for left, _, _ in made.groups] == [1, 2, 3]
    got = jax.jit(lambda x, y: made.sum(lambda i, j: x[i] * y[j], axis=-1))(x, y)
    left, right, dense = np.zeros((3, 4, 4))
    left[full], right[full] = x, y
    dense[made.pattern.rows, made.pattern.indices] = got
    np.testing.assert_array_equal(dense, left @ right)


def test_sums_longer_than_what_is_unrolled():
    a = Pattern.from_mask(np.ones((3, 40)))
    b = Pattern.from_mask(np.random.default_rng(0).random((40, 5)) < 0.8)
    b = Pattern.from_mask(np.concatenate([b.as_mask(), np.eye(40)[:, :2] > 0], axis=1))
    made = plan_product(a, b)
    # 15 sums of about 32 terms; those of the two diagonal columns have one.
    assert made.rest[0].size == (b.column_counts[:5] - 1).sum() * 3 and not made.groups
    x, y = integers(0, 4, a.nnz), integers(1, b.nnz)
    got = made.sum(lambda i, j: jnp.asarray(x)[:, i] * jnp.asarray(y)[j], axis=-1)
    dense = np.zeros((40, 7))
    dense[b.rows, b.indices] = y
    np.testing.assert_array_equal(np.asarray(got).reshape(4, 3, 7), x.reshape(4, 3, 40) @ dense)


@pytest.mark.parametrize("density", [0.0, 0.2, 1.0])
def test_blocks(density):
    a, b = pair(5, 4, 6, 5, density)
    x, y = integers(0, a.nnz, 2, 3), integers(1, b.nnz, 3, 4)
    made = plan_blocks(a, b)
    got = np.asarray(made.multiply(jnp.asarray(x), jnp.asarray(y), jnp.matmul))
    left, right = np.zeros((4, 6, 2, 3)), np.zeros((6, 5, 3, 4))
    left[a.rows, a.indices], right[b.rows, b.indices] = x, y
    want = np.einsum("amij,mbjk->abik", left, right)
    dense = np.zeros_like(want)
    dense[made.pattern.rows, made.pattern.indices] = got
    np.testing.assert_array_equal(dense, want)


def test_many_products_are_listed_some_rows_at_a_time(monkeypatch):
    a, b = pair(7, 30, 20, 25, 0.5)
    want = multiply.__wrapped__(a, b)
    monkeypatch.setattr(plan, "_CHUNK", 10)
    assert multiply.__wrapped__(a, b) == want


def test_a_plan_is_made_once_and_its_indices_are_arguments():
    a, b = pair(8, 6, 6, 6, 0.4)
    made = plan_product(a, b)
    assert plan_product(Pattern.from_mask(a.as_mask()), b) is made
    f = jax.jit(lambda made, x, y: made.sum(lambda i, j: x[i] * y[j], axis=-1))
    text = f.lower(made, jnp.ones(a.nnz), jnp.ones(b.nnz)).as_text()
    # No index array among the constants of the program: what is left is bounds, of a few digits.
    assert all(len(line) < 200 for line in text.splitlines() if "stablehlo.constant" in line)


def test_sizes_that_do_not_fit():
    a, b = Pattern.diagonal(3), Pattern.diagonal(4)
    for f in (multiply, plan_product, plan_blocks):
        with pytest.raises(ValueError, match=r"got \(3, 3\) and \(4, 4\); the rows of b"):
            f(a, b)
