"""`Sequential` against Flax's own: values, gradients, what goes through the chain."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from flax_cases import FLOAT, assert_close, scalar

import parscan_bp as pb
import parscan_bp.linen
import parscan_bp.nnx
from parscan_bp.adapters.sequential import BY_AD

HOW = {"dtype": FLOAT, "param_dtype": FLOAT}
IMAGES = jax.random.normal(jax.random.key(0), (2, 9, 8, 3), FLOAT)
POOL = {"window_shape": (2, 2), "strides": (2, 2)}


def _nnx_layers():
    rngs = nnx.Rngs(0)
    norm = nnx.BatchNorm(4, use_running_average=True, rngs=rngs, **HOW)
    # Flax's statistics are float32 whatever the parameters are, and mixed types are left to AD.
    norm.mean, norm.var = (nnx.BatchStat(v[...].astype(FLOAT)) for v in (norm.mean, norm.var))
    return [
        nnx.Conv(3, 4, (3, 2), strides=(2, 1), padding="VALID", rngs=rngs, **HOW),
        nnx.relu,
        functools.partial(nnx.max_pool, **POOL),
        nnx.Conv(4, 4, (2, 2), feature_group_count=2, kernel_dilation=2, rngs=rngs, **HOW),
        norm,
        lambda x: jnp.sin(3 * x),
        lambda x: nnx.avg_pool(x, (2, 1), strides=(1, 2)),
        lambda x: x[..., ::-1],
        lambda x: x.reshape(x.shape[0], -1),
        nnx.Dropout(0.5, deterministic=True),
        nnx.LayerNorm(8, rngs=rngs, **HOW),
        nnx.Linear(8, 5, use_bias=False, rngs=rngs, **HOW),
        nnx.softmax,
    ]


WANTED = ("Conv Elementwise MaxPool Conv BatchNorm Elementwise AveragePool AD Flatten identity "
          "LayerNorm Linear Softmax").split()  # fmt: skip


def _assert_paths(explained, wanted):
    full = {"AD": BY_AD, "identity": "the identity"}
    assert explained == tuple(full.get(name, name) for name in wanted)


@pytest.mark.parametrize("solver", [None, pb.Blelloch()], ids=["sweep", "blelloch"])
def test_a_network_of_nnx_layers(solver):
    layers = _nnx_layers()
    theirs, ours = nnx.Sequential(*layers), pb.nnx.Sequential(*layers, solver=solver)
    _assert_paths(ours.explain(IMAGES), WANTED)
    loss = lambda model, x: scalar(model(x))  # noqa: E731
    grad = nnx.jit(nnx.value_and_grad(loss, argnums=(nnx.DiffState(0, nnx.Param), 1)))
    assert_close(grad(ours, IMAGES), grad(theirs, IMAGES))


def test_a_network_of_linen_layers():
    layers = [
        nn.Conv(4, (3, 3), strides=2, param_dtype=FLOAT),
        nn.tanh,
        functools.partial(nn.avg_pool, window_shape=(2, 2)),
        lambda x: nn.Dense(3, param_dtype=FLOAT, name="inline")(x.reshape(x.shape[0], -1)),
        nn.Dropout(0.5, deterministic=True),
        nn.Dense(5, param_dtype=FLOAT),
        nn.gelu,
    ]
    theirs, ours = nn.Sequential(layers), pb.linen.Sequential(layers)
    variables = theirs.init(jax.random.key(0), IMAGES)
    assert jax.tree.structure(ours.init(jax.random.key(0), IMAGES)) == jax.tree.structure(variables)
    explained = ours.apply(variables, IMAGES, method="explain")
    _assert_paths(explained, "Conv Elementwise AveragePool AD identity Linear Elementwise".split())

    def grad(model):
        loss = lambda variables, x: scalar(model.apply(variables, x))  # noqa: E731
        return jax.jit(jax.value_and_grad(loss, (0, 1)))(variables, IMAGES)

    assert_close(grad(ours), grad(theirs))


class Pair(nnx.Module):
    """Two results, and a state that changes."""

    def __init__(self):
        self.calls = nnx.Variable(jnp.zeros((), int))

    def __call__(self, x):
        self.calls[...] += 1
        return x, {"scale": 2.0}


def test_what_is_no_layer_of_ours_goes_through_flax():
    pair, scale = Pair(), jnp.ones(())
    noisy = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
    layers = [nnx.tanh, pair, lambda x, how: {"x": x * how["scale"]}, lambda x: x * scale, noisy]
    model = pb.nnx.Sequential(*layers)
    x = jnp.ones((2, 3))
    assert model.explain(x) == ("Elementwise", *[BY_AD] * 4)
    assert pair.calls[...] == 0  # a copy ran
    got, want = (kind(*layers)(x, rngs=nnx.Rngs(1)) for kind in (pb.nnx.Sequential, nnx.Sequential))
    assert got.shape == want.shape and pair.calls[...] == 2
    assert pb.nnx.Sequential()(x) is x
    assert isinstance(pb.nnx.Sequential(lambda x: (x,))(x), tuple)
    # Where it matters that a function is called with values, or an input is no batch.
    assert pb.nnx.Sequential(lambda x: x * float(x.sum()))(x).tolist() == [[6.0] * 3] * 2
    assert pb.nnx.Sequential(nnx.tanh).explain(jnp.ones(3)) == (BY_AD,)


def test_a_function_that_changes_a_module_is_left_to_flax():
    pair = Pair()
    model = pb.nnx.Sequential(lambda x: pair(x)[0], nnx.relu)
    assert model(jnp.ones((2, 3))).shape == (2, 3) and pair.calls[...] == 1


@pytest.mark.parametrize("library", [nnx, pb.nnx], ids=["flax", "ours"])
def test_mistakes_are_those_of_flax(library):
    with pytest.raises(TypeError, match="is not callable: 3"):
        library.Sequential(nnx.relu, 3)(jnp.ones((2, 3)))
    with pytest.raises(TypeError, match="dot_general"):
        library.Sequential(nnx.Linear(4, 5, rngs=nnx.Rngs(0)))(jnp.ones((2, 3)))


def test_a_solver_that_takes_no_layers_of_different_sizes_is_refused():
    with pytest.raises(NotImplementedError, match="Associative takes uniform systems only"):
        pb.nnx.Sequential(nnx.relu, solver=pb.Associative())(jnp.ones((2, 3)))


def test_parameters_that_were_replaced_count():
    """JAX remembers the trace of a function that it has seen, with the arrays of that time."""
    layers = nnx.Linear(3, 4, rngs=nnx.Rngs(0)), nnx.relu, nnx.Linear(4, 2, rngs=nnx.Rngs(1))
    theirs, ours, x = nnx.Sequential(*layers), pb.nnx.Sequential(*layers), jnp.ones((2, 3))
    for _ in range(2):
        assert jnp.allclose(ours(x), theirs(x))
        layers[0].kernel[...] = layers[0].kernel[...] + 1


class Shifted(nnx.Module):
    def __call__(self, x, shift=0.0):
        return {"x": x + shift}


class Scaled(nnx.Module):
    def __call__(self, x, scale=1.0):
        return x * scale, x


def test_keywords_go_where_flax_passes_them():
    dropout = nnx.Dropout(0.5, deterministic=True, rngs=nnx.Rngs(0))
    layers = Shifted(), lambda x: x, dropout, Scaled(), lambda a, b, shift=0.0: a - b + shift

    def outcome(sequential, **kwargs):
        try:
            return sequential(*layers)(jnp.ones((2, 3)), **kwargs).tolist()
        except TypeError as error:
            return type(error)

    for kwargs in ({}, {"shift": 2.0}, {"shift": 2.0, "scale": 3.0}, {"rngs": nnx.Rngs(0)}):
        assert outcome(pb.nnx.Sequential, **kwargs) == outcome(nnx.Sequential, **kwargs), kwargs


def test_a_known_layer_that_is_given_keywords_is_flaxs():
    norm = nnx.BatchNorm(3, use_running_average=False, rngs=nnx.Rngs(0))
    layers, x = (lambda x: x + 0.0, norm), jnp.arange(6.0).reshape(2, 3)

    def outcome(sequential):
        try:
            return sequential(*layers)(x, use_running_average=True).tolist()
        except TypeError as error:
            return str(error)

    assert outcome(pb.nnx.Sequential) == outcome(nnx.Sequential)


def test_without_layers_arguments_are_returned_as_by_flax():
    for args, kwargs in [((), {}), ((1,), {}), ((1, 2), {}), ((), {"k": 2})]:
        assert pb.nnx.Sequential()(*args, **kwargs) == nnx.Sequential()(*args, **kwargs)
