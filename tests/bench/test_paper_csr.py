"""Algorithms 2 to 10 against the builders of this package, and against their own prose."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

from bench.paper import paper_csr
from parscan_bp.layers import Conv, MaxPool, ReLU
from parscan_bp.operators import Sparse, to_structure

SIZES = [(1, 1, 2, 3), (2, 3, 2, 3), (3, 2, 5, 4), (1, 4, 3, 7), (3, 4, 6, 6)]
"""(inputs, outputs, height, width); (2, 3) is the smallest image."""


def as_scipy(op: Sparse) -> sp.csr_matrix:
    arrays = (np.asarray(op.data), op.pattern.indices, op.pattern.indptr)
    # A copy: scipy drops zeros in place.
    return sp.csr_matrix(arrays, op.shape, copy=True)


def channels_first(op: Sparse, inside: tuple[int, int], outside: tuple[int, int]) -> sp.csr_matrix:
    """Rows and columns ravelled (channels, positions) instead of (positions, channels)."""
    order = [np.arange(p * c).reshape(p, c).T.ravel() for p, c in (inside, outside)]
    return as_scipy(op)[order[0]][:, order[1]]


def assert_same_matrix(got: sp.csr_matrix, want: sp.csr_matrix) -> None:
    """Equal patterns and equal numbers, bit for bit."""
    for matrix in (got, want):
        matrix.sort_indices()
    np.testing.assert_array_equal(got.indptr, want.indptr)
    np.testing.assert_array_equal(got.indices, want.indices)
    np.testing.assert_array_equal(got.data, want.data)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_convolution(size):
    inputs, outputs, height, width = size
    kernel = np.random.default_rng(0).standard_normal((3, 3, inputs, outputs))
    weights = jnp.asarray(kernel.transpose(3, 2, 0, 1))
    ours, layer = {"kernel": jnp.asarray(kernel)}, Conv(outputs, (3, 3), bias=False)
    x = jnp.zeros((1, height, width, inputs), weights.dtype)
    adjoint = layer.adjoint_operator(ours, x, None)
    theirs = paper_csr.convolution(weights, height, width)
    pixels = height * width
    # The printed formula keeps a zero where a pixel at the left or right edge has no neighbour.
    assert theirs.pattern.nnz == 3 * width * (3 * height - 2) * inputs * outputs
    without = as_scipy(theirs)
    without.eliminate_zeros()
    assert without.nnz == (3 * width - 2) * (3 * height - 2) * inputs * outputs == adjoint.nnz
    mine = to_structure(adjoint, Sparse)
    assert_same_matrix(without, channels_first(mine, (pixels, inputs), (pixels, outputs)))


def test_the_arrays_are_those_that_scipy_takes_as_they_are():
    weights = jnp.arange(1.0, 55).reshape(3, 2, 3, 3)
    indptr = paper_csr.convolution_indptr(2, 3, 4, 5)
    indices = paper_csr.convolution_indices(2, 3, 4, 5, indptr)
    data = paper_csr.convolution_data(weights, 4, 5, indptr)
    matrix = sp.csr_matrix((np.asarray(data), indices, indptr), (40, 60))
    assert matrix.has_canonical_format
    pull = jax.vjp(lambda x: jax.lax.conv(x, weights, (1, 1), "SAME"), jnp.zeros((1, 2, 4, 5)))[1]
    want = jax.vmap(lambda ct: pull(ct.reshape(1, 3, 4, 5))[0].ravel())(jnp.eye(60))
    np.testing.assert_array_equal(matrix.toarray(), np.asarray(want).T)


def test_vgg_sparsity_with_and_without_the_explicit_zeros():
    theirs = paper_csr.convolution(jnp.ones((64, 3, 3, 3)), 32, 32).pattern
    adjoint = Conv(64, (3, 3)).adjoint_operator(
        {"kernel": jnp.ones((3, 3, 3, 64))}, jnp.zeros((1, 32, 32, 3)), None
    )
    assert f"{1 - theirs.fill:.5f}" == "0.99139"
    assert f"{1 - to_structure(adjoint, Sparse).pattern.fill:.5f}" == "0.99157"


def test_relu():
    x = jnp.array([-1.0, 0.0, 2.0, -0.0, 1e-30])
    ours = to_structure(ReLU().adjoint_operator(None, x[None], None).take(0), Sparse)
    assert_same_matrix(as_scipy(paper_csr.relu(x)), as_scipy(ours))


def test_max_pool():
    channels, height, width = 3, 4, 6
    x = jnp.asarray(np.random.default_rng(0).integers(0, 3, (1, height, width, channels)), float)
    layer = MaxPool((2, 3))
    op = layer.adjoint_operator(None, x, layer.apply(None, x)).take(0)
    pool_indices = np.asarray(op.source).T.reshape(channels, 2, 2)
    ours = channels_first(to_structure(op, Sparse), (height * width, channels), (4, channels))
    # The window's other entries, which our static pattern holds, are zeros.
    ours.eliminate_zeros()
    assert_same_matrix(as_scipy(paper_csr.max_pool(pool_indices, height, width)), ours)


def test_mistakes():
    with pytest.raises(ValueError, match=r"weights: got shape \(2, 2, 3, 5\)"):
        paper_csr.convolution(jnp.ones((2, 2, 3, 5)), 4, 4)
    for height, width in ((1, 4), (4, 2)):
        with pytest.raises(ValueError, match=rf"height, width: got {height}, {width}"):
            paper_csr.convolution(jnp.ones((2, 2, 3, 3)), height, width)
    with pytest.raises(ValueError, match=r"x: got shape \(2, 2\)"):
        paper_csr.relu(jnp.ones((2, 2)))
    with pytest.raises(ValueError, match="taken twice"):
        paper_csr.max_pool(np.array([[[1, 1]]]), 1, 4)
    with pytest.raises(ValueError, match="outside of the image of 1x4"):
        paper_csr.max_pool(np.array([[[1, 4]]]), 1, 4)
