"""Jacobians of every layer as BCOO matrices, against automatic differentiation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import sparse

from parscan_bp import layers
from tests.family import together

RNG = np.random.default_rng(0)
IMAGE = jnp.asarray(RNG.normal(size=(2, 4, 4, 2)))
VECTOR = jnp.asarray(RNG.normal(size=(3, 5)))

CASES = {
    "AveragePool": (layers.AveragePool((2, 2)), IMAGE),
    "BatchNorm": (layers.BatchNorm(), IMAGE),
    "Coloured": (
        layers.Coloured(lambda _, x: x[1:] * x[:-1], [0, 0, 1, 1], [0, 1, 1, 2]),
        VECTOR[:, :3],
    ),
    "Conv": (layers.Conv(2, (3, 3), 2, "VALID", groups=2), IMAGE),
    "ConvTranspose": (layers.ConvTranspose(2, (3, 3)), IMAGE),
    "Dropout": (layers.Dropout(0.5), VECTOR),
    "Elementwise": (layers.Elementwise(jax.nn.gelu), VECTOR),
    "Flatten": (layers.Flatten(), IMAGE),
    "Function": (layers.Function(lambda _, x: jnp.cumsum(x)), VECTOR),
    "LayerNorm": (layers.LayerNorm(), VECTOR),
    "Linear": (layers.Linear(4), VECTOR),
    "MaxPool": (layers.MaxPool((2, 2)), IMAGE),
    "Residual": (layers.Residual((layers.Linear(5), layers.Tanh())), VECTOR),
    "Softmax": (layers.Softmax(), VECTOR),
    "relu": (jax.nn.relu, VECTOR),
}


def test_every_layer_has_a_case():
    assert {kind.__name__ for kind in layers.LAYERS} <= set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_jacobian(name, request):
    (plain, transposed), want = together(request, jacobians_of)
    for matrix in (plain, transposed):
        assert isinstance(matrix, sparse.BCOO) and matrix.unique_indices and matrix.indices_sorted
    dense, turned = (sparse_to_dense(matrix) for matrix in (plain, transposed))
    np.testing.assert_allclose(np.broadcast_to(dense, want.shape), want, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(turned, np.swapaxes(dense, -1, -2), rtol=1e-5, atol=1e-6)


def jacobians_of(name):
    layer, x = CASES[name]
    known = layers.as_layer(layer)
    params = known.init(jax.random.key(0), x.shape[1:], x.dtype)
    if name == "Dropout":
        params = jnp.asarray(RNG.integers(2, size=(1, *x.shape[1:])), bool)

    def flat(v, x):
        return known.apply(params, v.reshape(x.shape)[None])[0].ravel()

    def run(x):
        made = [layers.jacobian_bcoo(layer, params, x, transposed=t) for t in (False, True)]
        return made, jax.vmap(lambda x: jax.jacobian(flat)(x.ravel(), x))(x)

    return run, (x,)


def sparse_to_dense(matrix):
    """A batched one, by its indices."""
    made = np.zeros(matrix.shape, matrix.dtype)
    data, indices = np.asarray(matrix.data), np.asarray(matrix.indices)
    for at in np.ndindex(data.shape[:-1]):
        np.add.at(made[at], tuple(np.broadcast_to(indices, (*data.shape, 2))[at].T), data[at])
    return made


def test_the_pattern_is_that_of_the_layer():
    conv = layers.Conv(2, (3, 3), padding="SAME")
    params = conv.init(jax.random.key(0), IMAGE.shape[1:], IMAGE.dtype)
    matrix = layers.jacobian_bcoo(conv, params, IMAGE)
    rows, cols = matrix.shape
    assert matrix.n_batch == 0 and matrix.nse < rows * cols / 2
    assert layers.jacobian_bcoo(layers.ReLU(), None, VECTOR).nse == VECTOR.shape[1]


def test_what_is_no_layer():
    with pytest.raises(TypeError, match="there is no builder for"):
        layers.jacobian_bcoo(jnp.cumsum, None, VECTOR)
    with pytest.raises(TypeError, match=r"x: got int32\[2, 3\]; real floats"):
        layers.jacobian_bcoo(jax.nn.relu, None, jnp.ones((2, 3), jnp.int32))
    with pytest.raises(ValueError, match=r"params\[0\]"):
        layers.jacobian_bcoo(jax.nn.relu, {"kernel": 1.0}, VECTOR)
    with pytest.raises(TypeError, match="transposed: got 1"):
        layers.jacobian_bcoo(jax.nn.relu, None, VECTOR, transposed=1)
