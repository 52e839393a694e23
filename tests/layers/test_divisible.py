"""What a layer says about how its work can be divided is true of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from layer_examples import DILATED_POOLS, EXAMPLES

from parscan_bp.layers import MaxPool
from tests.family import together

ALL = [*EXAMPLES, *DILATED_POOLS]
SAYING = [
    example
    for example in ALL
    if (example.layer.places_apart and len(example.features) > 1)
    or example.layer.channels_apart
    or example.layer.windows(example.features[:-1]) is not None
]
KINDS = {type(example.layer) for example in SAYING}
# Of each kind its first and its last geometry.
SOME = [
    own[k]
    for kind in sorted(KINDS, key=lambda kind: kind.__name__)
    if (own := [example for example in SAYING if type(example.layer) is kind])
    for k in {0, len(own) - 1}
]
RTOL = 1e-12 if jnp.result_type(float) == jnp.float64 else 1e-5


def assert_close(got, want):
    np.testing.assert_allclose(got, want, rtol=RTOL, atol=RTOL)


@pytest.mark.parametrize("example", SOME, ids=repr)
def test_work_can_be_divided_as_the_layer_says(example, request):
    for got, want in together(request, lambda example: (divided(example), example.draw())):
        assert_close(got, want)


def divided(example):
    """A function to pairs that are to be equal."""
    layer, spatial = example.layer, example.features[:-1]

    def run(params, x):
        y, pairs = layer.apply(params, x), []
        if layer.channels_apart:
            assert all(leaf.shape[-1] == y.shape[-1] for leaf in jax.tree.leaves(params))
            other = jax.tree.map(lambda leaf: leaf.at[..., 1:].set(7.0), params)
            pairs.append((layer.apply(other, x)[..., :1], y[..., :1]))
        if layer.places_apart and spatial:
            order = np.random.default_rng(0).permutation(spatial[0])
            pairs.append((layer.apply(params, x[:, order]), y[:, order]))
        windows = None if layer.places_apart else layer.windows(spatial)
        if windows is not None:
            assert y.shape[1:-1] == tuple(axis.outputs for axis in windows)
            inside = jnp.ones((1, *spatial, 1), x.dtype)
            pads = tuple(axis.padding for axis in windows)
            pairs.append((layer.slide(params, x, pads, inside), y))
            if all(axis.spread == 1 for axis in windows):  # all padding in the input, none around
                around = ((0, 0), *pads, (0, 0))
                x = jnp.pad(x, around, constant_values=layer.padding_value)
                none = ((0, 0),) * len(pads)
                pairs.append((layer.slide(params, x, none, jnp.pad(inside, around)), y))
        return pairs

    return run


def test_a_dilated_maximum_has_the_derivative_of_its_operator():
    layer = MaxPool((3, 2), 1, "SAME", (1, 2))
    x = jax.random.randint(jax.random.key(0), (2, 6, 5, 3), -2, 3).astype(float)  # with ties

    @jax.jit
    def both(x):
        y, pull = jax.vjp(lambda x: layer.apply(None, x), x)
        ct = jax.random.normal(jax.random.key(1), y.shape, y.dtype)
        operator = layer.adjoint_operator(None, x, y)
        return pull(ct)[0], operator.matvec(ct.reshape(2, -1)).reshape(x.shape)

    assert_close(*both(x))
    assert jnp.isnan(layer.apply(None, x.at[0, 0, 1, 0].set(jnp.nan))[0, 0, 0, 0])
