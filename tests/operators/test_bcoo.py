"""To and from JAX's own sparse matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import sparse

from parscan_bp.layers import Conv, init
from parscan_bp.operators import Sparse

MATRIX = jnp.array([[0.0, 2.0, 0.0], [1.0, 0.0, 3.0]])


def test_there_and_back():
    op = Sparse.from_bcoo(sparse.BCOO.fromdense(MATRIX))
    assert op.pattern.nnz == 3
    np.testing.assert_array_equal(op.as_dense(), MATRIX)
    np.testing.assert_array_equal(op.to_bcoo().todense(), MATRIX)
    np.testing.assert_array_equal(op.to_bcoo() @ jnp.ones(3), op.matvec(jnp.ones(3)))


def test_entries_in_any_order():
    indices = jnp.array([[1, 2], [0, 1], [1, 0]])
    op = Sparse.from_bcoo(sparse.BCOO((jnp.array([3.0, 2.0, 1.0]), indices), shape=(2, 3)))
    np.testing.assert_array_equal(op.as_dense(), MATRIX)


def test_a_stack_shares_its_pattern():
    op = Sparse.from_bcoo(sparse.BCOO.fromdense(MATRIX))
    stack = Sparse(jnp.stack([op.data, 2 * op.data]), op.pattern)
    matrices = stack.to_bcoo()
    assert matrices.n_batch == 1 and matrices.indices.shape == (1, 3, 2)
    np.testing.assert_array_equal(matrices.todense(), stack.as_dense())
    np.testing.assert_array_equal(Sparse.from_bcoo(matrices).as_dense(), stack.as_dense())


def test_a_layers_jacobian():
    layer, x = Conv(2, (3, 3)), jax.random.normal(jax.random.key(0), (1, 4, 4, 1))
    (params,) = init([layer], jax.random.key(1), x.shape[1:])
    op = layer.adjoint_operator(params, x, layer.apply(params, x)).entries()
    want = jax.jacobian(lambda x: layer.apply(params, x).ravel())(x).reshape(32, 16).T
    got = op.to_bcoo().todense()
    np.testing.assert_allclose(got.reshape(16, 32), want, atol=1e-6)


def test_mistakes():
    with pytest.raises(ValueError, match="two sparse axes"):
        Sparse.from_bcoo(sparse.BCOO.fromdense(MATRIX, n_dense=1))
    with pytest.raises(TypeError, match=r"matrix\.indices"):
        jax.jit(lambda m: Sparse.from_bcoo(m).as_dense())(sparse.BCOO.fromdense(MATRIX))
