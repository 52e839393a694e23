"""Small networks of every kind that a chain is tested on."""

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
    "mlp": (
        [Linear(6), Tanh(), LayerNorm(), Linear(5), jax.nn.gelu, Linear(4), jax.nn.softmax],
        (5,),
    ),
}


def draw(name):
    """Layers, parameters and a batch of inputs."""
    layers, features = NETS[name]
    params = init(layers, jax.random.key(0), features)
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda a: a + 0.05 * jnp.asarray(rng.normal(size=a.shape), a.dtype), params
    )
    return layers, params, jnp.asarray(rng.normal(size=(BATCH, *features)), float)


def plain(layers, params, x):
    """The stack by JAX's own differentiation."""
    return activations([as_layer(thing) for thing in layers], params, x)[-1]


def loss_of(run):
    """A loss whose cotangent differs in every entry."""

    def loss(params, x):
        y = run(params, x)
        return jnp.sum(y * jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape))

    return loss
