"""Small networks of every kind that a chain is tested on."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from parscan_bp.layers import (
    AveragePool,
    BatchNorm,
    Conv,
    Flatten,
    LayerNorm,
    Linear,
    MaxPool,
    ReLU,
    Residual,
    Tanh,
    activations,
    as_layer,
    init,
)

BATCH = 3


def vgg11(width, classes):
    """VGG-11 with ``width`` channels in its first convolution, 64 in the paper's."""
    layers = []
    for factor in (1, "M", 2, "M", 4, 4, "M", 8, 8, "M", 8, 8, "M"):
        new = [MaxPool((2, 2))] if factor == "M" else [Conv(factor * width, (3, 3)), jax.nn.relu]
        layers += new
    return [*layers, Flatten(), Linear(classes)]


def kept(shape, part, seed=0):
    """A random mask of a kernel."""
    return np.random.default_rng(seed).random(shape) < part


# name: layers, shape of one input
NETS = {
    "lenet5": (
        [
            *(Conv(6, (5, 5), padding="VALID"), jax.nn.relu, MaxPool((2, 2))),
            *(Conv(16, (3, 3), padding="VALID"), jax.nn.relu, MaxPool((2, 2))),
            *(Flatten(), Linear(12), jax.nn.relu, Linear(8), jax.nn.relu, Linear(5)),
        ],
        (16, 16, 2),
    ),
    "vgg": (
        [
            *(Conv(4, (3, 3)), jax.nn.relu, MaxPool((2, 2))),
            *(Conv(6, (3, 3)), BatchNorm(), jax.nn.relu),
            *(Conv(6, (3, 3)), jax.nn.relu, MaxPool((3, 3), 2, "SAME")),
            *(Flatten(), Linear(4)),
        ],
        (8, 8, 3),
    ),
    "residual": (
        [
            Conv(4, (3, 3)),
            Residual((Conv(4, (3, 3)), ReLU(), Conv(4, (3, 3)))),
            Residual((Conv(6, (3, 3), 2), Tanh(), LayerNorm()), (Conv(6, (1, 1), 2),)),
            *(AveragePool((2, 2)), Flatten(), Linear(3)),
        ],
        (4, 4, 2),
    ),
    "pruned": (
        [
            Conv(4, (3, 3), mask=kept((3, 3, 2, 4), 0.4)),
            jax.nn.relu,
            Conv(6, (3, 3), 2, groups=2, mask=kept((3, 3, 2, 6), 0.3)),
            *(Tanh(), Flatten(), Linear(4, mask=kept((54, 4), 0.2))),
        ],
        (6, 6, 2),
    ),
    "mlp": (
        [Linear(6), Tanh(), LayerNorm(), Linear(5), jax.nn.gelu, Linear(4), jax.nn.softmax],
        (5,),
    ),
}


@functools.cache
def draw(name):
    """Layers, parameters and a batch of inputs."""
    layers, features = NETS[name]
    params, x = draw_for(layers, (BATCH, *features))
    return layers, params, x


def draw_for(layers, shape):
    """Parameters and inputs, by NumPy: nothing is compiled for them."""
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(lambda key: init(layers, key, shape[1:], float), jax.random.key(0))

    def numbers(a):
        spread = (2 / math.prod(a.shape[:-1])) ** 0.5 if len(a.shape) > 1 else 0.1
        middle = 0 if len(a.shape) > 1 else 0.5
        return jnp.asarray(middle + spread * rng.normal(size=a.shape), a.dtype)

    return jax.tree.map(numbers, shapes), jnp.asarray(rng.normal(size=shape), float)


def plain(layers, params, x):
    """The stack by JAX's own differentiation."""
    return activations([as_layer(thing) for thing in layers], params, x)[-1]


def loss_of(run):
    """A loss whose cotangent differs in every entry."""

    def loss(params, x):
        y = run(params, x)
        return jnp.sum(y * jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape))

    return loss
