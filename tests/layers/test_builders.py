"""Every layer's operator and pullback against automatic differentiation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from layer_examples import BATCH, DILATED_POOLS, EXAMPLES, REST, THINNED, Example

from parscan_bp.layers import LAYERS, Dropout
from parscan_bp.layers.base import flat
from tests.family import together

RTOL = 1e-12 if jnp.result_type(float) == jnp.float64 else 1e-6


def assert_equal(got, want, exact: bool) -> None:
    """Bit for bit where the operation copies, else relative to the largest entry."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    if exact:
        np.testing.assert_array_equal(got, want)
    else:
        scale = max(np.abs(want).max(initial=0), 1e-30)
        np.testing.assert_allclose(got / scale, want / scale, rtol=0, atol=RTOL)


def check_operator(operator, dense, product, ct, jacobian, exact: bool) -> None:
    assert operator.shape == jacobian.shape[:0:-1]
    assert operator.stack_shape in ((), (BATCH,))
    dense = np.broadcast_to(dense, (BATCH, *operator.shape))
    assert_equal(dense, np.swapaxes(jacobian, 1, 2), exact)
    want = np.einsum("boi,bo->bi", np.asarray(jacobian, float), flat(np.asarray(ct, float)))
    assert_equal(product, want.astype(product.dtype), False)


def one_example(layer, params, x):
    return layer.apply(params, x[None])[0].ravel()


@pytest.mark.parametrize("example", [*THINNED, *REST], ids=repr)
def test_operator_and_pullback_equal_automatic_differentiation(example: Example, request):
    *linear, (got, want) = together(request, derivatives_of)
    check_operator(*linear, example.exact)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.dtype == b.dtype
        if b.dtype != jax.dtypes.float0:
            assert_equal(a, b, False)


def derivatives_of(example: Example):
    layer = example.layer
    # A mask has a batch axis, parameters do not.
    mask = isinstance(layer, Dropout)

    def run(params, x):
        y, vjp = jax.vjp(lambda params: layer.apply(params, x), params)
        ct = jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape)
        operator = layer.adjoint_operator(params, x, y)

        def jacobian(p, x):
            p = p[None] if mask else p
            return jax.jacrev(lambda x: one_example(layer, p, x))(x).reshape(-1, x.size)

        jacobians = jax.vmap(jacobian, in_axes=(0 if mask else None, 0))(params, x)
        cts = (layer.pullback(params, x, y, ct), *vjp(ct))
        return operator, operator.as_dense(), operator.matvec(flat(ct)), ct, jacobians, cts

    return run, example.draw()


@pytest.mark.parametrize("example", DILATED_POOLS, ids=repr)
def test_dilated_max_pools_equal_forward_mode(example: Example, request):
    """JAX has no VJP of a dilated max-pool; its JVP is the reference."""

    def prepare(example):
        layer = example.layer

        def run(x):
            y = layer.apply(None, x)
            operator = layer.adjoint_operator(None, x, y)
            columns = jax.vmap(jax.jacfwd(lambda x: one_example(layer, None, x)))(x)
            jacobians = columns.reshape(BATCH, -1, x[0].size)
            return operator, operator.as_dense(), operator.matvec(flat(y)), y, jacobians

        return run, example.draw()[1:]

    check_operator(*together(request, prepare), exact=True)


def test_there_is_an_example_of_every_layer():
    assert {type(example.layer) for example in EXAMPLES} == set(LAYERS)
    assert len(EXAMPLES) + len(DILATED_POOLS) >= 300
