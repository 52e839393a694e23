"""Layers that close over values: traced ones are differentiated, nothing is remembered wrong."""

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parscan_bp as pb
from parscan_bp.layers import (
    Coloured,
    Elementwise,
    Function,
    Linear,
    MaxPool,
    Residual,
    activations,
    as_layer,
    init,
)
from tests.quickly import jit_quickly

X = jnp.linspace(-1.0, 1.0, 12).reshape(3, 4)
W = jnp.array([0.5, 1.5, -2.0, 0.3])
B = jnp.asarray(0.7, W.dtype)

# name: the layers that close over w and b
STACKS = {
    "elementwise": lambda w, b: [Linear(4), Elementwise(lambda v: jnp.tanh(v * w) * b), Linear(4)],
    "derivative": lambda w, b: [Elementwise(lambda v: v * v * w, lambda v, y: 2 * v * w)],
    "function": lambda w, b: [Function(lambda p, v: jnp.cumsum(jnp.sin(v * w)) * b), jax.nn.relu],
    "coloured": lambda w, b: [Linear(4), Coloured(lambda p, v: v**2 * w * b, range(4), range(4))],
    "residual": lambda w, b: [
        Residual((Linear(4), Elementwise(lambda v: jnp.sin(v * w)), Function(lambda p, v: v * b)))
    ],
}


def plain(layers, params, x, solver=None):
    return activations([as_layer(thing) for thing in layers], params, x)[-1]


MODES = {
    "grad": lambda f, at, t: jax.grad(f, (0, 1, 2, 3))(*at),
    "grad by w under jit": lambda f, at, t: jax.jit(jax.grad(f))(*at),
    "grad by x in a jit over w": lambda f, at, t: jax.jit(lambda w: jax.grad(f, 3)(w, *at[1:]))(
        at[0]
    ),
    "hvp": lambda f, at, t: jax.jvp(jax.grad(f, (0, 1, 2, 3)), at, t)[1],
    "vmap of grad": lambda f, at, t: jax.vmap(jax.grad(f, (0, 3)), (0, None, None, None))(
        jnp.stack([at[0], 2 * at[0]]), *at[1:]
    ),
    "in a scan": lambda f, at, t: jax.grad(
        lambda w: jax.lax.scan(lambda c, _: (c + f(c, *at[1:]) / 8, None), w, None, length=2)[
            0
        ].sum()
    )(at[0]),
}


@pytest.mark.sampled
@pytest.mark.parametrize("solver", [None, pb.Sweep(), pb.Blelloch()], ids=["none", "sweep", "tree"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", STACKS)
def test_traced_values_are_differentiated(name, mode, solver):
    if name in ("function", "residual"):
        solver = None  # trees take no matrix-free operators
    make = STACKS[name]
    params = init(make(W, B), jax.random.key(0), (4,))

    def loss(run):
        def of(w, b, params, x):
            y = run(make(w, b), params, x, solver=solver)
            return jnp.sum(y * jnp.cos(jnp.arange(4.0)))

        return of

    at = (W, B, params, X)
    t = jax.tree.map(lambda a: jnp.cos(jnp.arange(a.size) + 0.5).reshape(a.shape), at)
    got = MODES[mode](loss(pb.chain), at, t)
    want = jit_quickly(lambda at, t: MODES[mode](loss(plain), at, t))(at, t)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (a.dtype, a.weak_type) == (b.dtype, b.weak_type)
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_a_function_that_outlives_a_trace_keeps_none_of_its_values():
    """The same function object reads another tracer each time."""
    held = {}

    def loss(w):
        held["w"] = w
        return pb.chain([Elementwise(read)], [None], X).sum()

    read = lambda v: v * held["w"]  # noqa: E731
    want = X.sum(0)
    for _ in range(2):
        np.testing.assert_allclose(jax.grad(loss)(W), want, atol=1e-6)
        np.testing.assert_allclose(jax.jit(jax.grad(loss))(W), want, atol=1e-6)


def test_a_custom_layer_that_is_matrix_free_is_named():
    w_of = {}

    class Own(pb.layers.Layer):
        def apply(self, params, x):
            return x * w_of["w"]

        def adjoint_operator(self, params, x, y):
            return Function(lambda p, v: v * w_of["w"]).adjoint_operator(None, x, y)

    def loss(w):
        w_of["w"] = w
        return pb.chain([Own()], [None], X).sum()

    with pytest.raises(NotImplementedError, match="closes over traced values"):
        jax.grad(loss)(W)


def test_f_is_elementwise_or_not_at_the_shape_of_its_input():
    def norm(v):  # over the places of (batch, *places, channels)
        return v - v.mean(tuple(range(1, v.ndim - 1)), keepdims=True)

    def of_two(v):  # mixes a batch of more than two
        return v if v.shape[0] <= 2 else v + v[::-1]

    for f, fits, mixes in ((norm, (2, 3), (2, 4, 3)), (of_two, (2, 3), (3, 3))):
        for solver in (None, pb.Sweep(), pb.Blelloch()):
            run = lambda x: pb.chain([Elementwise(f)], [None], x, solver=solver)  # noqa: E731
            got, want = (jax.vjp(g, jnp.ones(fits))[1](jnp.ones(fits)) for g in (run, f))
            np.testing.assert_array_equal(*got, *want)
            with pytest.raises(ValueError, match=r"layers\[0\].*not elementwise for x of shape"):
                jax.grad(lambda x: run(x).sum())(jnp.ones(mixes))


@pytest.mark.parametrize("solver", [None, pb.Sweep(), pb.Blelloch()], ids=["none", "sweep", "tree"])
def test_a_window_in_the_padding_passes_nothing_on(solver):
    """Its value is -inf, and so may be its cotangent; JAX drops it."""
    layers = [MaxPool((2,), 2, ((2, 0),)), Elementwise(jnp.square)]
    x = jnp.arange(1.0, 5.0).reshape(1, 4, 1)
    run = lambda f: jax.grad(lambda x: f(layers, [None, None], x).sum())(x)  # noqa: E731
    got = run(lambda *args: pb.chain(*args, solver=solver))
    np.testing.assert_array_equal(got, run(plain))
    assert np.isfinite(got).all()
    # Not compiled, where XLA makes a choice of a product with a weight of zero or one.
    ct = jnp.ones((1, 3, 1))
    got = pb.layer_cotangents(layers, [None, None], x, ct, solver=solver)[0]
    np.testing.assert_array_equal(got, run(plain))


def test_settings_and_axes_of_the_call_count():
    layers = [Elementwise(lambda v: v + jnp.ones(4) * jax.lax.axis_size("i"))]
    run = lambda x: pb.chain(layers, [None], x)  # noqa: E731
    for size in (2, 3, 2):
        got = jax.vmap(run, axis_name="i")(jnp.zeros((size, 1, 4)))
        assert got.ravel().tolist() == [size] * 4 * size
    with jax.numpy_rank_promotion("raise"), pytest.raises(ValueError, match="rank_promotion"):
        jax.vmap(run, axis_name="i")(jnp.zeros((2, 1, 4)))


def test_layers_live_no_longer_than_their_user():
    class Model:
        def __init__(self):
            self.w = jnp.ones(4)

    def use():
        model = Model()
        layers = [Elementwise(lambda v: v * model.w), jax.nn.relu]
        jax.grad(lambda x: pb.chain(layers, [None, None], x).sum())(X)
        return weakref.ref(model)

    alive = use()
    gc.collect()
    assert alive() is None
