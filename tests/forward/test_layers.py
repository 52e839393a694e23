"""The layers of Flax with their values by a method."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import parscan_bp as pb
import parscan_bp.linen
import parscan_bp.nnx
from tests.quickly import jit_quickly

X = jax.random.normal(jax.random.key(0), (2, 40, 3))
CELLS = ["SimpleCell", "GRUCell", "OptimizedLSTMCell"]
TO_THE_END = pb.Chunks(4, rounds=3)
FORWARD = {"chunks": "chunks", "an object": TO_THE_END}


def _close(got, want):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-5 * (1 + np.abs(b).max()))


@pytest.mark.parametrize("forward", FORWARD)
@pytest.mark.parametrize("cell", CELLS)
def test_nnx(cell, forward):
    def result(library, **options):
        layer = library.RNN(getattr(nnx, cell)(3, 4, rngs=nnx.Rngs(0)), reverse=True, **options)
        loss = lambda layer, x: jnp.sum(jnp.sin(layer(x)))  # noqa: E731
        return nnx.jit(nnx.value_and_grad(loss, argnums=(0, 1)))(layer, X)

    how = FORWARD[forward]
    _close(result(parscan_bp.nnx, forward=how), result(nnx))


@pytest.mark.parametrize("cell", CELLS)
def test_linen(cell):
    def result(library, **options):
        layer = library.RNN(getattr(nn, cell)(4), **options)
        variables = layer.init(jax.random.key(1), X)
        loss = lambda v, x: jnp.sum(jnp.sin(layer.apply(v, x)))  # noqa: E731
        return jit_quickly(jax.value_and_grad(loss, (0, 1)))(variables, X)

    _close(result(parscan_bp.linen, forward=TO_THE_END), result(nn))


def test_masks_and_reports():
    mask = jnp.arange(40) < jnp.array([[25], [40]])
    kept = dataclasses.replace(TO_THE_END, fallback=False, tolerance=1e-3)
    layers = [
        parscan_bp.nnx.RNN(nnx.GRUCell(3, 4, rngs=nnx.Rngs(0)), **how)
        for how in ({"forward": kept, "report": True}, {})
    ]
    (got, report), want = (layer(X, mask=mask) for layer in layers)
    _close(got, want)
    assert report.status == pb.Status.OK and report.forward.tolerance == np.float32(1e-3)
    assert [a.shape for a in report.forward.states] == [(40, 2, 4)]


def test_options_are_checked():
    cell = nnx.GRUCell(3, 4, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="fallback: False wants report=True"):
        parscan_bp.nnx.RNN(cell, forward=pb.Chunks(fallback=False))
