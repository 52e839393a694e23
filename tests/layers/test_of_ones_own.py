"""A layer that the package does not know: one class, in a chain by every solver."""

import functools
import inspect

import jax
import jax.numpy as jnp
import pytest

import parscan_bp as pb
from parscan_bp.layers import LAYERS, Layer, Linear, check_layer
from parscan_bp.operators import Diagonal
from tests.family import assert_derivatives_close, jit_once


class Affine(Layer):
    """y = a x + b, entry by entry."""

    def init(self, key, features, dtype=float):
        return {"a": jnp.ones(features, dtype), "b": jnp.zeros(features, dtype)}

    def apply(self, params, x):
        return params["a"] * x + params["b"]

    def adjoint_operator(self, params, x, y):
        return Diagonal(params["a"].ravel())

    def pullback(self, params, x, y, ct):
        return {"a": (ct * x).sum(0), "b": ct.sum(0)}


LAYERS_AND_SIZES = [(Linear(4), (3,)), (Affine(), (4,)), (jnp.tanh, None), (Affine(), (4,))]


def _case():
    keys = jax.random.split(jax.random.key(0), 5)
    params = [
        None if size is None else layer.init(key, size)
        for key, (layer, size) in zip(keys, LAYERS_AND_SIZES, strict=False)
    ]
    params = jax.tree.map(
        lambda p: p + 0.1 * jnp.cos(jnp.arange(1.0, p.size + 1)).reshape(p.shape), params
    )
    return params, jax.random.normal(keys[4], (2, 3))


def test_it_states_its_derivatives():
    params, _ = _case()
    check_layer(Affine(), params[1], jnp.linspace(-1.0, 1.0, 8).reshape(2, 4), jax.random.key(1))


@pytest.mark.parametrize("solver", [None, pb.Sweep(), pb.Blelloch(), pb.Planned()], ids=str)
def test_in_a_chain_by_every_solver(solver):
    layers = [layer for layer, _ in LAYERS_AND_SIZES]

    def plain(layers, params, x):
        for layer, p in zip(layers, params, strict=True):
            x = layer.apply(p, x) if isinstance(layer, Layer) else layer(x)
        return x

    def gradients(chain):
        loss = lambda params, x: jnp.sum(jnp.sin(chain(layers, params, x)))  # noqa: E731
        return jit_once(jax.value_and_grad(loss, (0, 1)))(*_case())

    got, want = gradients(functools.partial(pb.chain, solver=solver)), gradients(plain)
    assert_derivatives_close(got, want, 1e-5)


def test_every_layer_that_one_can_import_is_registered():
    names = (getattr(pb.layers, name) for name in pb.layers.__all__)
    classes = {c for c in names if inspect.isclass(c) and issubclass(c, Layer)}
    assert {c for c in classes if not inspect.isabstract(c)} == set(LAYERS)


class NoOperator(Affine):
    def adjoint_operator(self, params, x, y):
        return jnp.diag(params["a"])


@pytest.mark.parametrize("solver", [None, pb.Sweep(), pb.Blelloch()], ids=str)
def test_a_jacobian_that_is_no_operator_is_named(solver):
    params = NoOperator().init(jax.random.key(0), (4,))
    gradient = jax.grad(lambda x: pb.chain([NoOperator()], [params], x, solver=solver).sum())
    with pytest.raises(TypeError, match=r"layers\[0\].*adjoint_operator returned"):
        gradient(jnp.ones((2, 4)))


class Halving(Affine):
    def apply(self, params, x):
        return super().apply(params, x)[::2]


class NotSummed(Affine):
    def pullback(self, params, x, y, ct):
        return {"a": ct * x, "b": ct.sum(0)}


class Alone(Affine):
    def pullback(self, params, x, y, ct):
        return (ct * x).sum(0)


def test_a_batch_that_changes_is_named():
    params = [Halving().init(jax.random.key(0), (4,))]
    message = r"layers\[0\], .*makes shape \(1, 4\) of \(2, 4\); the batch of 2 is wanted"
    with pytest.raises(ValueError, match=message):
        jax.grad(lambda p: pb.chain([Halving()], p, jnp.ones((2, 4))).sum())(params)


class NoPullback(Affine):
    pullback = Layer.pullback


class Narrow(Affine):
    def adjoint_operator(self, params, x, y):
        return Diagonal(params["a"][:3])


class Rows(Affine):
    def adjoint_operator(self, params, x, y):
        return Diagonal(jnp.broadcast_to(params["a"], (3, 4)))


MISSTATED = {
    NoPullback: r"has no pullback, and so has no parameters: .*define pullback\(params, x, y, ct\)",
    Narrow: r"returned Diagonal of 3x3; 4x4, features of x \(2, 4\) times those of y \(2, 4\), is",
    Rows: r"returned a stack \(3,\) of operators; one for each of the 2 entries of the batch",
    NotSummed: r"pullback returned shapes \[\(2, 4\), \(4,\)\]; those of the parameters",
    Alone: r"pullback returned shapes \[\(4,\)\]; those of the parameters",
}


@pytest.mark.parametrize("kind", MISSTATED)
def test_what_is_misstated_is_named_with_its_layer(kind):
    params, x = kind().init(jax.random.key(0), (4,)), jnp.ones((2, 4))
    layers = [jnp.tanh, Linear(4, bias=False), kind()]

    def loss(kernel, own):
        return pb.chain(layers, [None, {"kernel": kernel}, own], x).sum()

    with pytest.raises(ValueError, match=rf"layers\[2\], .*{MISSTATED[kind]}"):
        jax.grad(loss, (0, 1))(jnp.eye(4), params)
    with pytest.raises(ValueError, match=f"{kind.__name__}.*{MISSTATED[kind]}"):
        check_layer(kind(), params, x, jax.random.key(0))
