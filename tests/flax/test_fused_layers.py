"""Flax layers with ``forward="fused"``: values and gradients of Flax, or a clear refusal."""

import flax.linen as nn
import jax
import numpy as np
import pytest
from flax import nnx

import parscan_bp as pb
import parscan_bp.linen
import parscan_bp.nnx
from parscan_bp import kernels, native

FUSED = pb.Fused(interpret=True)
X = jax.random.normal(jax.random.key(0), (2, 5, 3), "float32")
CELLS = ("SimpleCell", "GRUCell", "LSTMCell")

needs_kernels = pytest.mark.skipif(kernels.missing() is not None, reason=str(kernels.missing()))


def _close(got, want):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * max(1.0, np.abs(b).max()))


@needs_kernels
@pytest.mark.parametrize("name", CELLS)
def test_nnx(name):
    cell = getattr(nnx, name)(3, 4, dtype="float32", param_dtype="float32", rngs=nnx.Rngs(0))

    def loss(model):
        ys = model(X)
        return (ys**2).sum(), ys

    run = nnx.value_and_grad(loss, has_aux=True)
    (_, want), want_grads = run(nnx.RNN(cell))
    (_, got), got_grads = run(pb.nnx.RNN(cell, forward=FUSED))
    _close((got, got_grads), (want, want_grads))


@needs_kernels
@pytest.mark.parametrize("reverse", [pytest.param(False, marks=pytest.mark.slow), True])
def test_linen(reverse):
    cell = nn.LSTMCell(4, dtype="float32", param_dtype="float32")
    theirs = nn.RNN(cell, reverse=reverse)
    ours = pb.linen.RNN(cell, reverse=reverse, forward=FUSED)
    variables = theirs.init(jax.random.key(1), X)
    sides = [
        jax.value_and_grad(lambda v, m=m: (m.apply(v, X) ** 2).sum())(variables)
        for m in (ours, theirs)
    ]
    _close(*sides)


@needs_kernels
def test_a_cell_that_is_not_ours_is_refused():
    cell = nnx.GRUCell(3, 4, gate_fn=jax.nn.relu, rngs=nnx.Rngs(0))
    with pytest.raises(NotImplementedError, match=r"forward: .* got another step"):
        pb.nnx.RNN(cell, forward=FUSED)(X)


def test_a_device_without_the_kernels_is_refused(monkeypatch):
    monkeypatch.setattr(native, "is_available", lambda: False)
    cell = nnx.GRUCell(3, 4, rngs=nnx.Rngs(0))
    with pytest.raises(NotImplementedError, match="forward: Fused"):
        pb.nnx.RNN(cell, forward="fused")(X)
