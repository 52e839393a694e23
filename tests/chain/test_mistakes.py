"""Mistakes in layers and chains: each with its own message, naming the layer and the shapes."""

import re

import jax
import jax.numpy as jnp
import pytest

import parscan_bp as pb
from parscan_bp.layers import (
    AveragePool,
    BatchNorm,
    Coloured,
    Conv,
    ConvTranspose,
    Dropout,
    Elementwise,
    Function,
    LayerNorm,
    Linear,
    MaxPool,
    ReLU,
    Residual,
    check_layer,
    init,
    register,
)

X = jnp.ones((2, 4, 4, 3))


def run(*layers, features=(4, 4, 3), x=X, **options):
    return pb.chain(layers, init(layers, jax.random.key(0), features), x, **options)


def cotangents(ct):
    return pb.layer_cotangents([jax.nn.relu], [None], X, ct)


MISTAKES = {
    "no builder": (
        lambda: pb.chain([Linear(2), "conv"], [None, None], X),
        TypeError,
        r"layers\[1\]: there is no builder for 'conv'. Known layers: AveragePool, BatchNorm",
    ),
    "unknown function": (
        lambda: pb.chain([jnp.cumsum], [None], X),
        TypeError,
        r"layers\[0\]: there is no builder for .*known functions:.*relu",
    ),
    "channels": (
        lambda: run(Conv(2, (3, 3)), Linear(2), x=jnp.ones((2, 4, 4, 5))),
        ValueError,
        r"layers\[0\], Conv.*\(2, 4, 4, 5\).*kernel of shape \(3, 3, 3, 2\).*3 channels",
    ),
    "second layer": (
        lambda: pb.chain([jax.nn.relu, Linear(2, False)], [None, {"kernel": jnp.ones((4, 2))}], X),
        ValueError,
        r"layers\[1\], Linear.*input of shape \(2, 4, 4, 3\).*4 channels",
    ),
    "axes": (
        lambda: run(MaxPool((2,))),
        ValueError,
        r"layers\[0\], MaxPool.*3 axes",
    ),
    "kernel": (
        lambda: pb.chain([Conv(2, (3, 3), bias=False)], [{"kernel": jnp.ones((2, 2, 3, 2))}], X),
        ValueError,
        r"kernel: got shape \(2, 2, 3, 2\)",
    ),
    "window too large": (
        lambda: run(Conv(2, (5, 5), padding="VALID")),
        ValueError,
        r"\(4, 4\).*does not fit",
    ),
    "padding name": (lambda: Conv(2, (3, 3), padding="CIRCULAR"), ValueError, "'CIRCULAR', which"),
    "padding of a pool": (lambda: MaxPool((2,), padding="REFLECT"), ValueError, "'REFLECT', which"),
    "padding axes": (lambda: Conv(2, (3,), padding=(1, 1)), ValueError, "each of 1 axes"),
    "negative padding": (lambda: AveragePool((2,), padding=-1), ValueError, "at least 0"),
    "transposed padding": (
        lambda: run(ConvTranspose(2, (3, 3), padding="SAME_LOWER")),
        ValueError,
        "not defined for a transposed",
    ),
    "strides": (lambda: Conv(2, (3, 3), strides=(1, 1, 1)), ValueError, "strides: got"),
    "zero window": (lambda: MaxPool((0,)), ValueError, "window: got"),
    "groups": (lambda: Conv(3, (3,), groups=2), ValueError, "multiple of groups=2"),
    "training": (lambda: BatchNorm(training=True), NotImplementedError, "own statistics"),
    "rate": (lambda: Dropout(1.0), ValueError, r"\[0, 1\)"),
    "mask": (lambda: pb.chain([Dropout(0.5)], [None], X), ValueError, "array of bools"),
    "mask shape": (
        lambda: pb.chain([Dropout(0.5)], [jnp.ones((2, 3), bool)], X),
        ValueError,
        r"mask: got shape \(2, 3\)",
    ),
    "not elementwise": (
        lambda: pb.chain([Elementwise(jnp.cumsum)], [None], X),
        ValueError,
        r"cumsum.*not elementwise for x of shape \(2, 4, 4, 3\)|cumsum.*makes",
    ),
    "norm sizes": (
        lambda: run(LayerNorm(), x=jnp.ones((2, 5))),
        ValueError,
        r"LayerNorm with (scale|bias) of shape \(3,\)",
    ),
    "residual sizes": (
        lambda: run(Residual((Conv(2, (3, 3)),))),
        ValueError,
        r"branch: makes .*2\) and the shortcut .*3\)",
    ),
    "mask of floats": (
        lambda: Conv(2, (3,), mask=jnp.ones((3, 1, 2))),
        TypeError,
        "mask: got .*float.*array of bools",
    ),
    "mask of another kernel": (
        lambda: run(Linear(2, mask=jnp.ones((2, 2), bool)), features=(3,), x=jnp.ones((1, 3))),
        ValueError,
        r"layers\[0\], Linear.*mask: got one of 2 times 2",
    ),
    "memory limit": (
        lambda: jax.grad(
            lambda params: pb.chain(
                [Linear(2), jax.nn.relu, Linear(2)], params, X, solver=pb.Planned(memory_limit=99)
            ).sum()
        )(init([Linear(2), jax.nn.relu, Linear(2)], jax.random.key(0), (4, 4, 3))),
        ValueError,
        r"memory_limit: no schedule of 2 operators fits into 99 bytes; the linear scan.*[0-9]",
    ),
    "plan of another solver": (
        lambda: pb.explain_chain([jax.nn.relu], [None], X, solver=pb.Sweep()),
        TypeError,
        r"solver: got Sweep.*Planned\(\) or Sharded is wanted",
    ),
    "two outputs": (
        lambda: pb.chain([jax.nn.relu, Function(lambda p, x: (x, x))], [None, None], X),
        ValueError,
        r"layers\[1\], Function.*: makes .*tuple; one array is wanted",
    ),
    "params": (lambda: pb.chain([jax.nn.relu], [], X), ValueError, "0 entries for 1 layers"),
    "integers": (lambda: run(jax.nn.relu, x=jnp.ones((2, 3), int)), TypeError, "real floats"),
    "no batch": (lambda: run(jax.nn.relu, x=jnp.ones(3)), TypeError, "real floats"),
    "solver": (lambda: run(jax.nn.relu, solver="sweep"), TypeError, "solver: got 'sweep'"),
    "uniform solver": (
        lambda: run(jax.nn.relu, solver=pb.Associative()),
        NotImplementedError,
        "Associative takes uniform systems only",
    ),
    "cotangent": (
        lambda: pb.layer_cotangents([jax.nn.relu], [None], X, jnp.ones(3)),
        ValueError,
        r"ct: got shape \(3,\)",
    ),
    "pattern": (
        lambda: Coloured(lambda p, x: x, [0, 1], [0]),
        ValueError,
        "1 indices for 2 outputs",
    ),
    "negative pattern": (
        lambda: Coloured(lambda p, x: x, [-1], [0]),
        ValueError,
        "outputs: got -1",
    ),
    "pattern of floats": (
        lambda: Coloured(lambda p, x: x, [1.5], [0]),
        TypeError,
        r"outputs: got \[1.5\], of type list; a sequence of integers",
    ),
    "no pattern": (lambda: Coloured(lambda p, x: x, [0], None), TypeError, "inputs: got None"),
    "no x": (lambda: pb.chain([jax.nn.relu], [None], None), TypeError, "x: got None; real floats"),
    "list": (lambda: pb.chain([jax.nn.relu], [None], [[1.0]]), TypeError, "x: got .*type list"),
    "x of a plan": (
        lambda: pb.explain_chain([jax.nn.relu], [None], "a"),
        TypeError,
        "x: got 'a', of type str; real floats",
    ),
    "shapes alone": (
        lambda: pb.chain([jax.nn.relu], [None], jax.ShapeDtypeStruct((1, 2), "float32")),
        TypeError,
        "x: got a ShapeDtypeStruct; an array is wanted; explain_chain takes shapes",
    ),
    "no kernel": (
        lambda: pb.chain([Linear(2, False)], [{"kernel": None}], X),
        ValueError,
        r"layers\[0\], Linear.*params\['kernel'\]: got None; an array is wanted",
    ),
    "kernel of lists": (
        lambda: pb.chain([Linear(1, False)], [{"kernel": [[1.0]] * 3}], X),
        ValueError,
        r"layers\[0\], Linear.*params\['kernel'\]: got .*list; an array is wanted",
    ),
    "parameter": (
        lambda: pb.chain([Function(lambda p, x: x)], [{"a": "b"}], X),
        TypeError,
        r"params\[0\]\['a'\]: got 'b', of type str; an array is wanted",
    ),
    "no cotangent": (lambda: cotangents(None), TypeError, "ct: got None; an array is wanted"),
    "cotangent of a name": (lambda: cotangents("a"), TypeError, "ct: got 'a', of type str"),
    "complex cotangent": (
        lambda: cotangents(1j * X),
        TypeError,
        "ct: got complex.*; real numbers are wanted, as the value is real",
    ),
    "epsilon": (lambda: LayerNorm(None), TypeError, "epsilon: got None; a number of at least 0"),
    "negative epsilon": (lambda: BatchNorm(-1), ValueError, "epsilon: got -1; a number of at"),
    "no bool": (lambda: BatchNorm(training=None), TypeError, "training: got None; True or False"),
    "features": (
        lambda: init([Linear(2)], jax.random.key(0), 3),
        TypeError,
        r"features: got 3, of type int; a tuple such as \(3,\) is wanted",
    ),
    "features with the batch": (
        lambda: init([Conv(2, (3, 3))], jax.random.key(0), X.shape),
        ValueError,
        r"features: got \(2, 4, 4, 3\), .*without the batch; layers\[0\], Conv.*wants 4 axes",
    ),
    "features that a layer cannot take": (
        lambda: init([Linear(3), Conv(4, (3,), groups=2)], jax.random.key(0), (5, 3)),
        ValueError,
        r"features: got \(5, 3\), .*layers\[1\], Conv.*got 3 channels; a multiple of groups=2",
    ),
    "a key that is none": (
        lambda: init([Linear(3)], 0, (5, 3)),
        TypeError,
        r"key: got 0, of type int; one random key, such as jax\.random\.key\(0\)",
    ),
    "a dtype that is none": (
        lambda: init([Linear(3)], jax.random.key(0), (5, 3), "float33"),
        TypeError,
        "dtype: got 'float33', of type str; a dtype is wanted",
    ),
    "a check of a function": (
        lambda: check_layer(jax.nn.relu, None, X, jax.random.key(0)),
        TypeError,
        r"layer: got .*; a Layer \(as_layer makes one",
    ),
    "a check of nothing": (
        lambda: check_layer(ReLU(), None, X, jax.random.key(0), probes=0),
        ValueError,
        "probes: got 0; at least 1 is wanted",
    ),
    "a check without a key": (
        lambda: check_layer(ReLU(), None, X, 0),
        TypeError,
        "key: got 0, of type int; one random key",
    ),
    "a bias for all": (
        lambda: pb.chain([Linear(4)], [{"kernel": jnp.ones((3, 4)), "bias": jnp.zeros(1)}], X),
        ValueError,
        r"layers\[0\], Linear.*bias: got shape \(1,\); \(4,\), one for each channel, is wanted",
    ),
    "activations of a function": (
        lambda: pb.layers.activations([jax.nn.relu], [None], X),
        TypeError,
        r"layers\[0\]: got .*; a Layer is wanted, as as_layer makes it",
    ),
    "register": (lambda: register(Linear, lambda l: l), TypeError, "kind: got"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named(name):
    call, kind, message = MISTAKES[name]
    with pytest.raises(kind) as caught:
        call()
    assert re.search(message, str(caught.value), re.DOTALL), caught.value


def test_a_pattern_that_misses_an_entry_is_found_by_the_check():
    short = Coloured(lambda p, x: x[::-1] + x, [0, 1, 2], [0, 1, 2])
    with pytest.raises(ValueError, match="adjoint_operator of Coloured"):
        check_layer(short, None, jnp.ones((1, 3)), jax.random.key(0))
