"""To and from JAX's own sparse matrices."""

import jax
import numpy as np
import pytest
from jax.experimental import sparse

from parscan_bp.layers import Conv
from parscan_bp.operators import Sparse
from tests.family import array, jit_once

MATRIX = np.array([[0.0, 2.0, 0.0], [1.0, 0.0, 3.0]], np.float32)


def bcoo(**options):
    """The matrix as JAX has it."""
    return jit_once(lambda a: sparse.BCOO.fromdense(a, nse=3, **options))(MATRIX)


@jit_once
def read(op, v):
    """The matrix, that of its conversion, and what both make of a vector."""
    matrix = op.to_bcoo()
    return op.as_dense(), matrix.todense(), op.matvec(v), matrix @ v


def test_there_and_back():
    op = Sparse.from_bcoo(bcoo())
    assert op.pattern.nnz == 3
    dense, back, product, wanted = read(op, np.ones(3, np.float32))
    np.testing.assert_array_equal(dense, MATRIX)
    np.testing.assert_array_equal(back, MATRIX)
    np.testing.assert_array_equal(wanted, product)


def test_entries_in_any_order():
    indices = array([[1, 2], [0, 1], [1, 0]])
    op = Sparse.from_bcoo(sparse.BCOO((array([3.0, 2.0, 1.0]), indices), shape=(2, 3)))
    np.testing.assert_array_equal(read(op, np.ones(3, np.float32))[0], MATRIX)


def test_a_stack_shares_its_pattern():
    op = Sparse.from_bcoo(bcoo())
    stack = Sparse(array(np.stack([op.data, 2 * np.asarray(op.data)])), op.pattern)
    matrices = stack.to_bcoo()
    assert matrices.n_batch == 1 and matrices.indices.shape == (1, 3, 2)
    there, back, again = jit_once(
        lambda stack, matrices, again: (stack.as_dense(), matrices.todense(), again.as_dense())
    )(stack, matrices, Sparse.from_bcoo(matrices))
    np.testing.assert_array_equal(back, there)
    np.testing.assert_array_equal(again, there)


def test_a_layers_jacobian():
    layer = Conv(2, (3, 3))
    rng = np.random.default_rng(0)
    x, kernel = (array(rng.normal(size=shape), "float32") for shape in ((1, 4, 4, 1), (3, 3, 1, 2)))
    params = {"kernel": kernel, "bias": array([0.5, -1.0])}

    @jit_once
    def run(params, x):
        op = layer.adjoint_operator(params, x, layer.apply(params, x)).entries()
        want = jax.jacobian(lambda x: layer.apply(params, x).ravel())(x)
        return op, op.to_bcoo().todense(), want

    op, got, want = run(params, x)
    assert isinstance(op, Sparse)
    np.testing.assert_allclose(got.reshape(16, 32), np.reshape(want, (32, 16)).T, atol=1e-6)


def test_room_for_more_entries_is_left_out():
    """As `jax.jit`, `jax.vmap` and sums make it: indices outside, or beyond the last offset."""
    bcsr = sparse.BCSR.fromdense(MATRIX, nse=7)
    mixed = sparse.BCOO(
        (array([9.0, 3.0, 2.0, 8.0, 1.0]), array([[2, 3], [1, 2], [0, 1], [2, 0], [1, 0]])),
        shape=(2, 3),
    )
    for op in (
        Sparse.from_csr(bcsr.data, bcsr.indices, bcsr.indptr, bcsr.shape),
        Sparse.from_bcoo(sparse.BCOO.fromdense(MATRIX, nse=7)),
        Sparse.from_bcoo(mixed),
    ):
        assert op.pattern.nnz == op.data.size == 3
        np.testing.assert_array_equal(read(op, np.ones(3, np.float32))[0], MATRIX)


def test_mistakes():
    with pytest.raises(ValueError, match="two sparse axes"):
        Sparse.from_bcoo(bcoo(n_dense=1))
    with pytest.raises(TypeError, match=r"matrix: got .*; a jax.experimental.sparse.BCOO is"):
        Sparse.from_bcoo(MATRIX)
    with pytest.raises(ValueError, match=r"indices: got shape \(1,\) for data of shape \(2,\); as"):
        Sparse.from_csr([1.0, 2.0], [0], [0, 1, 1], (2, 3))
    with pytest.raises(ValueError, match="at least the 3 entries in which indptr ends"):
        Sparse.from_csr([1.0, 2.0], [0, 1], [0, 1, 3], (2, 3))
    with pytest.raises(ValueError, match=r"indptr: got shape \(2,\); 3 ascending offsets from 0"):
        Sparse.from_csr([1.0], [0], [0, 1], (2, 3))
    with pytest.raises(TypeError, match=r"matrix\.indices"):
        jax.jit(lambda m: Sparse.from_bcoo(m).as_dense())(bcoo())
