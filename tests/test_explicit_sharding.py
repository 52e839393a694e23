"""Types that say how arrays are spread over a mesh: what `jax.make_mesh` gives."""

SETTING = """
import functools
import jax, jax.numpy as jnp
import numpy as np
import pytest
import parscan_bp as pb
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from parscan_bp.layers import Linear, activations, as_layer, init

mesh = jax.make_mesh((2,), ("rows",), axis_types=(AxisType.Explicit,))
jax.set_mesh(mesh)
keys = jax.random.split(jax.random.key(0), 4)

def put(tree, *spec):
    return jax.tree.map(lambda a: jax.device_put(a, NamedSharding(mesh, P(*spec))), tree)

def check(got, want, where):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert jax.typeof(a) == jax.typeof(b), (where, jax.typeof(a), jax.typeof(b))
        np.testing.assert_allclose(a, b, rtol=3e-5, atol=3e-5 * float(jnp.abs(b).max()))
"""

SCANS = (
    SETTING
    + """
B, T, H = 4, 20, 6

def two_leaves(p, carry, x):
    a, b = carry
    a = jax.nn.sigmoid(a @ p["w"] + x) * b
    b = jnp.tanh(b + a @ p["v"])
    return (a, b), b

def oscillator(p, h, x):
    h = h + 0.1 * jnp.sin(h @ p["w"] + x)
    return h, h

cell = pb.cells.GRU()
weights = {name: jax.random.normal(key, (H, H)) / 2 for name, key in zip("wv", keys)}
h0, xs = jnp.ones((B, H)), jax.random.normal(keys[3], (T, B, H))
steps = {
    "gru": (cell, cell.init(keys[2], H, H), h0),
    "oscillator": (oscillator, weights, h0),
    "two_leaves": (two_leaves, weights, (h0, h0)),
}
divided_features = ((), (None, "rows"), (None, None, "rows"))
places = {
    "gru": [((), ("rows",), (None, "rows"))],
    "two_leaves": [((), ("rows",), (None, "rows"))],
    "oscillator": [(("rows",), (), ()), divided_features],
}

def modes(scan, step):
    def loss(p, h, xs):
        last, ys = scan(functools.partial(step, p), h, xs)
        return sum((a**2).sum() for a in jax.tree.leaves(last)) + (ys[::3] ** 2).sum()
    gradient = jax.grad(loss, (0, 1, 2))
    return {"gradient": gradient, "product": lambda *a: jax.jvp(gradient, a, a)[1]}

for name, (step, p, h) in steps.items():
    some = ("gradient", "product") if name == "gru" else ("gradient",)
    for place in places[name]:
        at = tuple(put(tree, *spec) for tree, spec in zip((p, h, xs), place))
        want = {mode: jax.jit(modes(jax.lax.scan, step)[mode])(*at) for mode in some}
        corrections = pb.ChunkedCorrections(3, max_rounds=2)
        kept, chunked = pb.Sweep(recompute=False), pb.Chunked(chunks=3)
        for solver in (pb.Sweep(chunk=7), kept, chunked, corrections):
            if place is divided_features and isinstance(solver, pb.Chunked):
                continue  # its Jacobians are refused by JAX
            ours = modes(functools.partial(pb.scan, solver=solver), step)
            for mode in some[: 1 if solver is corrections else 2]:  # it takes long to compile
                check(jax.jit(ours[mode])(*at), want[mode], (solver, name, place, mode))
        report = lambda p, h, xs: pb.scan(
            functools.partial(step, p), h, xs, solver=pb.Sweep(), report=True
        )[2]
        assert jax.jit(report)(*at).status == pb.Status.OK, (name, place)
"""
)

CHAINS = (
    SETTING
    + """
layers = [Linear(8), jax.nn.relu, Linear(3)]
params = put(init(layers, keys[0], (5,)))
x = put(jax.random.normal(keys[1], (4, 5)), "rows")
stack = tuple(as_layer(layer, "layers") for layer in layers)

def gradient(value):
    return jax.jit(jax.value_and_grad(lambda params, x: (value(params, x) ** 2).sum(), (0, 1)))

plain = lambda params, x: activations(stack, params, x)[-1]
check(gradient(functools.partial(pb.chain, layers))(params, x), gradient(plain)(params, x), "")
named = functools.partial(pb.chain, layers, solver=pb.Sweep())
check(named(params, x), plain(params, x), "")
with pytest.raises(NotImplementedError, match="float32.4@rows,5. is sharded explicitly"):
    gradient(named)(params, x)
"""
)


def test_scans_have_the_derivatives_and_types_of_lax_scan(run_on_devices):
    run_on_devices(SCANS, 2, alone=True)


def test_chains_are_left_to_plain_differentiation(run_on_devices):
    run_on_devices(CHAINS, 2, alone=True)
