"""A gated cell of one's own, in one class: by every solver, fused, and differentiated twice."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from minimal_gated import MinimalGated

import parscan_bp as pb
from parscan_bp import kernels
from tests.family import assert_derivatives_close, jit_once

CELL = MinimalGated()
T, B, H, INPUTS = 7, 3, 5, 2
SOLVERS = [
    None,
    pb.Sweep(),
    pb.Sweep(recompute=False),
    pb.Chunked(chunks=2),
    pb.Blelloch(),
    pb.Blelloch(scaled=True),
    pb.Associative(),
]


def _case():
    params = CELL.init(jax.random.key(0), INPUTS, H, jnp.float32)
    params["b"] = jnp.linspace(-0.5, 0.5, 2 * H, dtype=jnp.float32)
    carry = jax.random.normal(jax.random.key(1), (B, H), jnp.float32)
    return params, carry, jax.random.normal(jax.random.key(2), (T, B, INPUTS), jnp.float32)


def _loss(scan):
    def loss(params, carry, xs):
        last, ys = scan(functools.partial(CELL, params), carry, xs)
        return jnp.sum(last**2) + jnp.sum(jnp.sin(ys))

    return loss


def _check(scan, derivative=lambda loss: jax.value_and_grad(loss, (0, 1, 2))):
    got, want = (jit_once(derivative(_loss(s)))(*_case()) for s in (scan, lax.scan))
    assert_derivatives_close(got, want, 2e-5)


@pytest.mark.parametrize("solver", SOLVERS, ids=str)
def test_gradients_by_every_solver(solver):
    _check(functools.partial(pb.scan, solver=solver))


def _hvp(loss):
    def hvp(*at):
        return jax.jvp(jax.grad(loss, (0, 1, 2)), at, jax.tree.map(jnp.cos, at))[1]

    return hvp


@pytest.mark.parametrize("solver", [pb.Sweep(), pb.Blelloch()], ids=str)
def test_products_with_the_hessian(solver):
    _check(functools.partial(pb.scan, solver=solver), _hvp)


@pytest.mark.skipif(kernels.missing() is not None, reason=str(kernels.missing()))
@pytest.mark.parametrize("reverse", [False, True])
def test_fused(reverse):
    """Values and gradients by one kernel each way, simulated."""
    fused, plain = (
        functools.partial(scan, reverse=reverse)
        for scan in (functools.partial(pb.scan, forward=pb.Fused(interpret=True)), lax.scan)
    )
    params, carry, xs = _case()
    step = functools.partial(CELL, params)
    for a, b in zip(fused(step, carry, xs), plain(step, carry, xs), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)
    got, want = (jit_once(jax.grad(_loss(s), (0, 1, 2)))(*_case()) for s in (fused, plain))
    assert_derivatives_close(got, want, 2e-5)


@pytest.mark.skipif(kernels.missing() is not None, reason=str(kernels.missing()))
def test_it_lowers_to_one_kernel_each_way(monkeypatch):
    monkeypatch.setattr(kernels, "unusable", lambda interpret: None)
    loss = _loss(functools.partial(pb.scan, forward="fused"))
    lowered = jax.jit(jax.grad(loss)).trace(*_case()).lower(lowering_platforms=("cuda",))
    assert lowered.as_text().count("custom_call @mosaic_gpu_v2") == 2


class Mistaken(MinimalGated):
    """It returns what it is told to."""

    def __init__(self, method, change):
        self.method, self.change = method, change

    def _of(self, method, value):
        return self.change(value) if method == self.method else value

    def activate(self, a):
        return self._of("activate", super().activate(a))

    def update(self, gates, past):
        return self._of("update", super().update(gates, past))

    def pull(self, gates, past, new, cts):
        return self._of("pull", super().pull(gates, past, new, cts))


@pytest.mark.parametrize("solver", [pb.Sweep(), pb.Blelloch()], ids=str)
@pytest.mark.parametrize(
    ("method", "change", "message"),
    [
        ("activate", lambda gates: gates[0], "activate: got .* a list is wanted"),
        ("update", lambda new: new * 2, "update: got 2; a list of 1 is wanted"),
        ("pull", lambda pulled: pulled[0], "of the pre-activations: got"),
        ("pull", lambda pulled: (pulled[0][:1], pulled[1]), "got 1; a list of 2 is wanted"),
        ("pull", lambda pulled: (pulled[0], []), "of past: got 0; a list of 1 is wanted"),
    ],
)
def test_what_its_functions_return_is_checked(method, change, message, solver):
    params, carry, xs = _case()
    step = functools.partial(Mistaken(method, change), params)
    with pytest.raises(TypeError, match=message):
        jax.grad(lambda c: pb.scan(step, c, xs, solver=solver)[0].sum())(carry)


@pytest.mark.skipif(kernels.missing() is not None, reason=str(kernels.missing()))
def test_kernels_take_no_cell_that_holds_arrays():
    params, carry, xs = _case()
    cell = Mistaken("none", None)
    cell.scale = jnp.ones(())
    with pytest.raises(NotImplementedError, match="Mistaken holds arrays, scale"):
        pb.scan(functools.partial(cell, params), carry, xs, forward=pb.Fused(interpret=True))
