"""Layers of Flax under two settings, and cells that change: nothing stale is used again."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from jax import lax

import parscan_bp as pb
import parscan_bp.linen
import parscan_bp.nnx
from tests.quickly import jit_quickly

SOLVERS = {"auto": None, "sweep": pb.Sweep()}
any_solver = pytest.mark.parametrize("solver", SOLVERS)
few = pytest.mark.sampled(of=("auto",))
BATCH, LENGTH, HIDDEN = 8, 40, 3


class Cell(nnx.RNNCellBase):
    """A cell with a Python value that may change, and noise whose key is made in the step."""

    def __init__(self, asks=None):
        self.kernel = nnx.Param(jnp.full((HIDDEN, HIDDEN), 0.2))
        self.factor = 1.0
        self.asks = asks

    def __call__(self, carry, x):
        x = self.factor * x
        if self.asks == "key":
            x = x * jax.random.bernoulli(jax.random.key(0), 0.5, x.shape)
        elif self.asks == "axis":
            x = x / lax.axis_size("i")
        h = jnp.tanh(carry @ self.kernel[...] + x)
        return h, h

    def initialize_carry(self, input_shape, rngs=None, carry_init=None):
        return jnp.zeros((*input_shape[:-1], HIDDEN))

    @property
    def num_feature_axes(self):
        return 1


def _layers(cell, solver):
    ours = parscan_bp.nnx.RNN(cell, rngs=False, solver=SOLVERS[solver])
    return nnx.RNN(cell, rngs=False), ours


def _inputs():
    return jnp.sin(jnp.arange(float(BATCH * LENGTH * HIDDEN))).reshape(BATCH, LENGTH, HIDDEN)


def _results(layer, x):
    """The value, eager and with its gradient by the parameters."""
    graph, params, rest = nnx.split(layer, nnx.Param, ...)

    def loss(params, rest):
        return jnp.sum(jnp.sin(nnx.merge(graph, params, rest)(x)))

    gradient = jit_quickly(jax.grad(loss))(params, rest)
    return [np.asarray(v) for v in (layer(x), *jax.tree.leaves(gradient))]


def _assert_close(got, want):
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@few
@any_solver
def test_a_value_of_the_cell_that_changes(solver):
    cell = Cell()
    flax, ours = _layers(cell, solver)
    before = _results(ours, _inputs())
    cell.factor = 2.0
    want = _results(flax, _inputs())
    assert not np.allclose(before[0], want[0])
    _assert_close(_results(ours, _inputs()), want)


@few
@any_solver
def test_a_value_that_the_cell_closes_over_and_that_changes(solver):
    world = {"factor": 1.0}

    class Closed(Cell):
        def __call__(self, carry, x):
            return super().__call__(carry, world["factor"] * x)

    flax, ours = _layers(Closed(), solver)
    _results(ours, _inputs())
    world["factor"] = 2.0
    _assert_close(_results(ours, _inputs()), _results(flax, _inputs()))


@few
@any_solver
@pytest.mark.parametrize("order", [(False, True), (True, False)], ids=["then", "first"])
def test_random_numbers_of_a_cell_under_two_settings(solver, order):
    flax, ours = _layers(Cell("key"), solver)
    wants, gots = [], []
    for results, layer in ((wants, flax), (gots, ours)):
        for partitionable in order:
            with jax.threefry_partitionable(partitionable):
                results.append(_results(layer, _inputs()))
    assert not np.allclose(wants[0][0], wants[1][0])
    for got, want in zip(gots, wants, strict=True):
        _assert_close(got, want)


@few
@any_solver
def test_a_cell_that_asks_for_the_size_of_a_mapped_axis(solver):
    flax, ours = _layers(Cell("axis"), solver)
    for size in (2, 4):
        x = _inputs()[None] * jnp.ones((size, 1, 1, 1))

        def mapped(layer, x=x):
            graph, state = nnx.split(layer)
            one = lambda state, x: nnx.merge(graph, state)(x)  # noqa: E731
            return [jit_quickly(jax.vmap(one, (None, 0), axis_name="i"))(state, x)]

        _assert_close(mapped(ours), mapped(flax))


@few
@any_solver
def test_linen_random_numbers_under_two_settings(solver):
    class Noisy(nn.RNNCellBase):
        @nn.compact
        def __call__(self, carry, x):
            kept = jax.random.bernoulli(jax.random.key(0), 0.5, x.shape)
            h = jnp.tanh(nn.Dense(HIDDEN)(carry) + x * kept)
            return h, h

        def initialize_carry(self, rng, input_shape):
            return jnp.zeros((*input_shape[:-1], HIDDEN))

        @property
        def num_feature_axes(self):
            return 1

    cell = Noisy()
    flax, ours = nn.RNN(cell), parscan_bp.linen.RNN(cell, solver=SOLVERS[solver])
    variables = flax.init(jax.random.key(0), _inputs())
    for partitionable in (True, False, True):
        with jax.threefry_partitionable(partitionable):
            want = flax.apply(variables, _inputs())
            _assert_close([ours.apply(variables, _inputs())], [want])
