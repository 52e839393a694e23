"""What each of two real processes runs in `test_processes`: a 1.5D grid, and a divided domain."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding

import parscan_bp as pb
from parscan_bp.layers import Conv, Flatten, Linear, MaxPool, activations, as_layer

NETS = {
    "model": ([Linear(6), jnp.tanh, Linear(5)], (7,), pb.parallel.Grid(model=2)),
    "batch": ([Linear(6), jnp.tanh, Linear(5)], (7,), pb.parallel.Grid(data=2)),
    "domain": (
        [Conv(3, (3, 3)), jax.nn.relu, Conv(4, (5, 2), strides=2)],
        (9, 6, 2),
        pb.parallel.Grid(height=2),
    ),
    "all": (
        [Conv(4, (3, 3)), jax.nn.relu, MaxPool((3, 3), 2), Flatten(), Linear(6)],
        (9, 6, 2),
        [pb.parallel.Grid(height=2)] * 3 + [pb.parallel.Grid(model=2)] * 2,
    ),
}


def run(name: str) -> float:
    """The largest relative error of loss and gradients over both processes' devices."""
    layers, features, grids = NETS[name]
    whole = tuple(map(as_layer, layers))
    stack = pb.parallel.divide(layers, features, grids)
    params = pb.layers.init(layers, jax.random.key(0), features, jnp.float32)
    x = np.random.default_rng(0).normal(size=(4, *features)).astype(np.float32)

    def loss(forward, params, x):
        return jnp.mean(forward(params, x) ** 2)

    plain = functools.partial(loss, lambda params, x: activations(whole, params, x)[-1])
    want = jax.jit(jax.value_and_grad(plain))(params, x)
    whole_x = NamedSharding(stack.mesh, jax.P())
    ours = jax.jit(jax.value_and_grad(functools.partial(loss, stack)))
    placed = stack.place(params)
    value, grads = ours(
        placed, jax.make_array_from_callback(x.shape, whole_x, lambda part: x[part])
    )
    got = multihost_utils.process_allgather((value, stack.collect(grads)), tiled=True)
    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)
    return max(float(np.abs(a - np.asarray(b)).max() / np.abs(b).max()) for a, b in pairs)
