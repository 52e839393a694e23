"""AlexNet and VGG-11 trained on six grids of eight virtual devices, beside one device."""

import pytest

PROGRAM = """
import functools
import jax, jax.numpy as jnp
import numpy as np
import optax
import parscan_bp as pb
from bench.paper.grids.networks import IMAGE, alexnet
from bench.paper.images.networks import vgg11
from parscan_bp.layers import Flatten, activations
from parscan_bp.parallel import Grid, divide

layers, features, rate = {network}
head = next(k for k, layer in enumerate(layers) if isinstance(layer, Flatten))
first, last = {grids}
stack = divide(layers, features, [first] * head + [last] * (len(layers) - head))
keys = jax.random.split(jax.random.key(0), 3)
images = jax.random.normal(keys[0], (8, *features), jnp.float32)
labels = jax.random.randint(keys[1], (8,), 0, stack.features[0])
params = pb.layers.init(layers, keys[2], features, jnp.float32)
optimiser = optax.sgd(rate, momentum=0.9)

def losses(forward, params):
    @jax.jit
    def step(params, moments):
        def loss(params):
            scores = forward(params, images)
            return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()

        value, grads = jax.value_and_grad(loss)(params)
        updates, moments = optimiser.update(grads, moments, params)
        return value, optax.apply_updates(params, updates), moments

    found, moments = [], optimiser.init(params)
    for _ in range(5):
        value, params, moments = jax.block_until_ready(step(params, moments))
        found.append(float(value))
    return found

want = losses(lambda params, x: activations(layers, params, x)[-1], params)
got = losses(stack, stack.place(params))
print(want, got)
assert abs(want[-1] - want[0]) > 1e-2, want
np.testing.assert_allclose(got, want, rtol=1e-4)
"""

NETS = {
    "alexnet": "alexnet(8), IMAGE, 0.02",
    "vgg11": "vgg11(divisor=4), (32, 32, 3), 0.002",
}
SIX = [
    "Grid(data=8), Grid(data=8)",
    "Grid(model=8), Grid(model=8)",
    "Grid(data=2, model=4), Grid(data=2, model=4)",
    "Grid(data=8), Grid(data=2, model=4)",
    "Grid(data=4, height=2), Grid(data=4, model=2)",
    "Grid(data=2, height=2, width=2), Grid(model=8)",
]


@pytest.mark.slow
@pytest.mark.parametrize("grids", SIX)
@pytest.mark.parametrize("network", NETS)
def test_losses_follow_those_of_one_device(network, grids, run_on_devices):
    run_on_devices(PROGRAM.format(network=NETS[network], grids=grids), 8)
