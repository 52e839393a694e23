"""Stacks on meshes whose axes are explicit: what `jax.make_mesh` gives, set by `jax.set_mesh`."""

import pytest

SETTING = """
import functools
import jax, jax.numpy as jnp
import numpy as np
import optax
import parscan_bp as pb
from jax.sharding import NamedSharding, PartitionSpec as P
from parscan_bp.layers import Conv, Flatten, LayerNorm, Linear, MaxPool, activations, as_layer
from parscan_bp.parallel import Grid, SyncBatchNorm, divide

tall, wide, head = Grid(data=2, height=4), Grid(data=2, height=2, width=2), Grid(data=2, model=4)
net = [Conv(8, (3, 3), groups=2), jnp.tanh, MaxPool((2, 2)), LayerNorm(), Flatten(), Linear(6)]

def set_up(layers, features, grids):
    stack = divide(layers, features, grids)
    params = pb.layers.init(layers, jax.random.key(0), features, jnp.float32)
    x = jax.random.normal(jax.random.key(1), (8, *features), jnp.float32)
    plain = lambda params, x: activations(tuple(map(as_layer, layers)), params, x)[-1]
    mesh = jax.make_mesh(tuple(dict(stack.axes).values()), tuple(dict(stack.axes)))
    # As a loader has them: what was made outside has no type on the mesh.
    return stack, plain, mesh, jax.tree.map(np.asarray, params), np.asarray(x)

def close(got, want, tolerance=3e-5):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * np.abs(b).max())
"""

GRADIENTS = (
    SETTING
    + """
def check(layers, features, grids, out, *spec):
    stack, plain, mesh, params, x = set_up(layers, features, grids)

    def all_of(f, params, x):
        y, pull = jax.vjp(f, params, x)
        return y, *pull(jnp.cos(y))

    want = jax.jit(functools.partial(all_of, plain))(params, x)
    with jax.set_mesh(mesh):
        placed = stack.place(params)
        for at in (x, jax.device_put(x, NamedSharding(mesh, P(*spec)))):
            y, cts, ct = jax.jit(functools.partial(all_of, stack))(placed, at)
            assert jax.typeof(y).sharding.spec == P(*out), jax.typeof(y)
            assert jax.tree.map(jax.typeof, cts) == jax.tree.map(jax.typeof, placed)
            close((y, stack.collect(cts), ct), want)

check([Linear(12), jnp.tanh, Linear(5)], (7,), head, ("data", None), "data")
check(net, (9, 7, 4), [tall] * 3 + [wide] + [head] * 2, ("data", None))
check([Conv(3, (3, 3), bias=False), SyncBatchNorm()], (8, 5, 2), tall,
      ("data", "height", None, None), "data")
# No type divides 7 rows among 4: they are whole.
check([Conv(3, (3, 3))], (7, 5, 2), tall, ("data", None, None, None))
"""
)

TRAINING = (
    SETTING
    + """
stack, plain, mesh, params, x = set_up(net, (9, 7, 4), [tall] * 3 + [wide] + [head] * 2)
labels = np.eye(6, dtype=np.float32)[np.arange(8) % 6]

def losses(forward, params, optimiser):
    @jax.jit
    def step(params, state):
        loss = lambda params: optax.softmax_cross_entropy(forward(params, x), labels).mean()
        value, grads = jax.value_and_grad(loss)(params)
        updates, state = optimiser.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    found, state = [], optimiser.init(params)
    for _ in range(4):
        params, state, value = jax.block_until_ready(step(params, state))
        found.append(float(value))
    return found

want = losses(plain, params, optax.adam(0.01))
assert abs(want[-1] - want[0]) > 1e-2, want
with jax.set_mesh(mesh):
    got = losses(stack, stack.place(params), optax.adam(0.01))
np.testing.assert_allclose(got, want, rtol=1e-4)
"""
)

ERRORS = (
    SETTING
    + """
import pytest
stack, plain, mesh, params, x = set_up([Linear(12), jnp.tanh, Linear(5)], (7,), head)
placed = stack.place(params)
part = {"mesh": stack.mesh, "in_specs": P("data"), "out_specs": P("data")}

with pytest.raises(ValueError, match="mesh: got one of rows=8, .* data=2, model=4 is wanted"):
    with jax.set_mesh(jax.make_mesh((8,), ("rows",))):
        stack.place(params)
kinds = (jax.sharding.AxisType.Explicit, jax.sharding.AxisType.Auto)
with pytest.raises(ValueError, match="mesh: got axes of types .*; either all are explicit, or"):
    with jax.set_mesh(jax.make_mesh((2, 4), ("data", "model"), axis_types=kinds)):
        stack.place(params)
with jax.set_mesh(stack.mesh):  # its own
    close(jax.jit(stack)(stack.place(params), x), jax.jit(plain)(params, x))
inside = r"x: it is a device's own part, along the mesh axes .*Inside, Stack.on_device"
with pytest.raises(ValueError, match=inside):
    jax.eval_shape(jax.shard_map(lambda x: stack(placed, x), **part), x)
with pytest.raises(ValueError, match=inside):
    jax.pmap(lambda x: stack(placed, x))(np.stack([x] * 8))
with pytest.raises(ValueError, match=r"Stack.on_device: the program does not run along .*'data'"):
    stack.on_device(placed, x)
whole = divide([Linear(12)], (7,), Grid(data=8))
with pytest.raises(NotImplementedError, match="Stack.on_device: .* with check_vma=True"):
    part = {**part, "mesh": whole.mesh, "check_vma": False}
    jax.eval_shape(jax.shard_map(lambda x: whole.on_device(params[:1], x), **part), x)
with pytest.raises(ValueError, match=r"params.2..'bias'.: got shape .5,., .* place or init"):
    stack(params, x)
other = pb.layers.init([Linear(13), jnp.tanh, Linear(5)], jax.random.key(0), (7,))
with pytest.raises(ValueError, match=r"params.0.: .'bias'. got shape .13,.; the 12 channels"):
    stack.place(other)
"""
)


@pytest.mark.parametrize("program", [GRADIENTS, TRAINING, ERRORS], ids=["grads", "train", "errors"])
def test_a_stack_on_an_explicit_mesh_is_that_of_one_device(program, run_on_devices):
    run_on_devices(program, 8)
