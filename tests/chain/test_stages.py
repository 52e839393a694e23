"""The layers of a chain over virtual devices: gradients of one device, exchanges as predicted."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import parscan_bp as pb
from parscan_bp.chain.stages import packed, unpacked
from parscan_bp.layers import Linear, init

PROGRAM = """
import functools
import jax, jax.numpy as jnp
import numpy as np
import parscan_bp as pb
from jax.sharding import Mesh
from parscan_bp.layers import Conv, Flatten, Linear, init
from parscan_bp.parallel import collective_stats
from tests.chain.nets import NETS, vgg11
from tests.family import assert_derivatives_close

BATCH = 3
mesh = Mesh(np.array(jax.devices()), ("stage",))

def mlp(depth, width):
    return [f for _ in range(depth // 2) for f in (Linear(width), jax.nn.tanh)]

def loss(layers, solver):
    return lambda params, x: (pb.chain(layers, params, x, solver=solver) ** 3).sum()

def check(layers, shape, method, modes=("gradient",)):
    params, x = init(layers, jax.random.key(0), shape), jnp.ones((BATCH, *shape)) * 0.5
    x = x + 0.1 * jax.random.normal(jax.random.key(1), x.shape)
    sides = [loss(layers, pb.Sharded("stage", mesh, method=method)), loss(layers, None)]
    for mode in modes:
        run = {
            "gradient": lambda f: jax.grad(f, (0, 1)),
            "jvp": lambda f: lambda *at: jax.jvp(f, at, at)[1],
            "product": lambda f: lambda *at: jax.jvp(jax.grad(f, (0, 1)), at, at)[1],
        }[mode]
        got, want = (jax.jit(run(side))(params, x) for side in sides)
        assert_derivatives_close(got, want, 1e-10, case=method, mode=mode)

def exchanged(layers, shape, method):
    params, x = init(layers, jax.random.key(0), shape), jnp.ones((BATCH, *shape))
    f = lambda x: pb.chain(layers, params, x, solver=pb.Sharded("stage", mesh, method=method))
    pull = lambda x, ct: jax.vjp(f, x)[1](ct)[0]
    ct = jax.eval_shape(f, x)
    found = collective_stats(jax.jit(pull).lower(x, ct).compile())
    return found["collective-permute"]
"""

QUICK = """
check(mlp(8, 6), (5,), "turns")
# Activations padded to the widest, 6: forward, what enters each device, and backward.
count = 2 * len(mesh.devices.flat) - 1
moved = exchanged(mlp(8, 6), (5,), "turns")
assert (moved.count, moved.bytes) == (count, count * BATCH * 6 * 8), moved
"""

SLOW = """
for method in ("turns", "ppermute", "all_gather", "chain"):
    check(mlp(32, 8), (5,), method)
check(mlp(8, 6), (5,), "turns", ("gradient", "jvp", "product"))
check(mlp(8, 6), (5,), "ppermute", ("gradient", "jvp", "product"))
check(NETS["vgg"][0], NETS["vgg"][1], "turns")
net = vgg11(2, 5)
check(net, (32, 32, 3), "auto")
"""


@pytest.mark.reads_compiled
def test_gradients_and_exchanges_of_four_stages(run_on_devices):
    run_on_devices(PROGRAM + QUICK, 4, x64=True)


@pytest.mark.reads_compiled
@pytest.mark.slow
def test_further_networks_and_methods(run_on_devices):
    run_on_devices(PROGRAM + SLOW, 4, x64=True)


def test_parameters_of_several_dtypes_are_packed_and_unpacked():
    a = {"w": jnp.arange(6.0, dtype="float32").reshape(2, 3), "n": jnp.arange(2, dtype="int32")}
    b = [jnp.ones(3, "float32"), jnp.float32(2)]
    stages = [jax.tree.leaves(a), jax.tree.leaves(b)]
    rows = packed(stages)
    assert sorted(row.shape for row in rows) == [(2, 2), (2, 6)]
    for k, tree in enumerate((a, b)):
        again = unpacked([row[k] for row in rows], jax.eval_shape(lambda tree=tree: tree))
        jax.tree.map(np.testing.assert_array_equal, again, tree)


def test_mistakes_are_named():
    layers = [Linear(3)]
    params, x = init(layers, jax.random.key(0), (3,)), jnp.ones((2, 3))
    solver = pb.Sharded("stage", Mesh(np.array(jax.devices()[:1]), ("stage",)))
    with pytest.raises(NotImplementedError, match=r"report: Sharded\(.* makes none of a chain"):
        pb.chain(layers, params, x, solver=solver, report=True)
    with pytest.raises(NotImplementedError, match=r"divides scans, and the layers of parscan_bp"):
        pb.layer_cotangents(layers, params, x, x, solver=solver)
    many = pb.Sharded("stage", jax.sharding.AbstractMesh((2,), ("stage",)))
    with pytest.raises(ValueError, match=r"layers: got 1 for 2 devices; at least one for each"):
        pb.chain(layers, params, x, solver=many)


def test_the_layers_of_each_device_are_explained():
    layers = [f for _ in range(16) for f in (Linear(8), jax.nn.tanh)]
    params, x = init(layers, jax.random.key(0), (8,)), jax.ShapeDtypeStruct((3, 8), jnp.float32)
    mesh = jax.sharding.AbstractMesh((4,), ("stage",))
    made = {
        method: pb.explain_chain(layers, params, x, solver=pb.Sharded("stage", mesh, method=method))
        for method in ("turns", "ppermute", "chain")
    }
    assert [len(s.layers) for s in made["turns"].stages] == [8] * 4
    # Forming the Jacobian of eight layers, two or so products between devices, eight layers.
    assert {method: one.depth for method, one in made.items()} == {
        "turns": 32,
        "ppermute": 18,
        "chain": 19,
    }
    text = str(made["ppermute"])
    assert "32 layers on 4 devices by Sharded(axis='stage'" in text
    assert "18 layers and products one after the other, of 32 in back-propagation" in text
    assert "backward: 2 collectives, 960 bytes" in text
