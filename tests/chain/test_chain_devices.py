"""A chain inside `jax.shard_map`: the same parameters on all devices, rows split over them."""

import pytest

PROGRAM = """
import functools
import jax, jax.numpy as jnp
import numpy as np
import parscan_bp as pb
from jax.sharding import Mesh, PartitionSpec as P
from parscan_bp.layers import (
    AveragePool, Conv, ConvTranspose, Flatten, Function, LayerNorm, Linear, MaxPool, ReLU,
    Residual, Softmax, init,
)

layers = [
    Conv(3, (3, 3)), jax.nn.relu, MaxPool((2, 2)), ConvTranspose(2, (2, 2)), AveragePool((2, 2)),
    Flatten(), Linear(8), jnp.tanh, LayerNorm(), Residual((Linear(8), ReLU())),
    Function(lambda p, x: jnp.cumsum(x, axis=-1)), Linear(3), Softmax(),
]
x = jax.random.normal(jax.random.key(1), (4, 6, 6, 2))
mesh = Mesh(np.array(jax.devices()), ("rows",))
each = (P(), P("rows"))

def gradient(layers, solver, p, x):
    loss = lambda p, x: (pb.chain(layers, p, x, solver=solver) ** 2 * jnp.arange(3)).sum()
    return jax.grad(loss, (0, 1))(p, x)

def product(layers, solver, p, x):
    at = lambda p: gradient(layers, solver, p, x)
    return jax.jvp(at, (p,), (jax.tree.map(jnp.cos, p),))[1]

def check(mode, layers, solver):
    params = init(layers, jax.random.key(0), (6, 6, 2))
    f = functools.partial(mode, layers, solver)
    got = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=each, out_specs=each))(params, x)
    want = jax.jit(f)(params, x)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        scale = 3e-5 * float(jnp.abs(b).max())
        np.testing.assert_allclose(a, b, rtol=3e-5, atol=scale, err_msg=f"{solver} {mode}")

explicit = [layer for layer in layers if not isinstance(layer, Function)]
"""


def test_gradients_are_those_of_the_whole_batch(run_on_devices):
    run_on_devices(PROGRAM + "check(gradient, layers, None)", 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        "product, layers, None",
        "gradient, explicit, pb.Blelloch()",
        "gradient, explicit, pb.Planned()",
    ],
)
def test_more_derivatives_are_those_of_the_whole_batch(arguments, run_on_devices):
    run_on_devices(f"{PROGRAM}check({arguments})", 2)
