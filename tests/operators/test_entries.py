"""Where weights stand in a matrix: convolutions made explicit, masks as patterns."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from parscan_bp.operators import (
    ChannelDense,
    Convolution,
    Dense,
    Diagonal,
    Sparse,
    entries_of,
    to_structure,
)

GEOMETRIES = {
    "plain": {},
    "strided and padded": {"strides": (2, 1), "padding": ((1, 1), (0, 2))},
    "dilated": {"dilation": (1, 2), "padding": ((0, 1), (2, 2))},
    "spread": {"input_dilation": (2, 1), "padding": ((1, 0), (1, 1))},
    "groups": {"groups": 2, "padding": ((1, 1), (0, 0))},
}


def make(geometry, transposed, stack=()):
    options = GEOMETRIES[geometry]
    kernel = np.random.default_rng(0).standard_normal(
        (*stack, 2, 3, 4 // options.get("groups", 1), 6)
    )
    op = Convolution(jnp.asarray(kernel), (4, 5), **options)
    return op.transpose() if transposed else op


@jax.jit
def all_forms(op, entries):
    """The matrix itself, entry by entry, in blocks, and with what `entries` keeps."""
    forms = (op, to_structure(op, Sparse), to_structure(op, ChannelDense))
    return *(form.as_dense() for form in forms), entries.sparse(op.kernel).as_dense()


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_explicit_convolutions_are_the_convolution(geometry, transposed):
    op = make(geometry, transposed, (2,) if geometry == "dilated" else ())
    shape = op.kernel.shape[-4:]
    keep = np.random.default_rng(1).random(shape) < 0.4
    entries = entries_of(jax.eval_shape(lambda: op), keep)
    dense, sparse, blocks, pruned = map(np.asarray, all_forms(op, entries))
    np.testing.assert_array_equal(sparse, dense)
    np.testing.assert_array_equal(blocks, dense)
    assert entries_of(op).pattern.nnz == op.nnz == np.count_nonzero(dense.reshape(-1, *op.shape)[0])
    # A kernel of place numbers tells which weight stands where.
    places = Convolution(
        jnp.arange(1.0, keep.size + 1).reshape(shape), (4, 5), **GEOMETRIES[geometry]
    )
    number = np.asarray((places.transpose() if transposed else places).as_dense()).astype(int)
    kept = np.concatenate([[False], keep.ravel()])[number]
    np.testing.assert_array_equal(pruned, np.where(kept, dense, 0))
    np.testing.assert_array_equal(entries.pattern.as_mask(), kept)


def test_a_mask_of_a_matrix():
    matrix = jnp.asarray(np.random.default_rng(2).standard_normal((3, 4, 5)))
    keep = np.random.default_rng(3).random((4, 5)) < 0.5
    entries = entries_of(Dense(matrix), keep)
    got = entries.sparse(matrix)
    np.testing.assert_array_equal(got.as_dense(), np.where(keep, matrix, 0))
    assert got.pattern.nnz == keep.sum()
    assert entries_of(Dense(matrix)).pattern.nnz == 20


def test_an_empty_mask_gives_an_empty_matrix():
    op = make("plain", True)
    got = entries_of(op, np.zeros(op.kernel.shape, bool)).sparse(op.kernel)
    assert got.pattern.nnz == 0 and got.shape == op.shape


def test_the_pattern_of_a_whole_convolution_is_planned_once():
    assert entries_of(make("groups", True)) is entries_of(make("groups", True))


def test_mistakes():
    op = make("plain", True)
    with pytest.raises(TypeError, match=r"op: got Diagonal; a Convolution or a Dense"):
        entries_of(Diagonal(jnp.ones(3)))
    with pytest.raises(ValueError, match=r"keep: got shape \(2, 3\)"):
        entries_of(op, np.ones((2, 3), bool))
    with pytest.raises(TypeError, match="keep: got a traced array"):
        jax.jit(lambda keep: entries_of(op, keep))(jnp.ones(op.kernel.shape, bool))
    with pytest.raises(ValueError, match=r"weights: got shape \(2, 3, 4\)"):
        entries_of(op).sparse(jnp.ones((2, 3, 4)))
