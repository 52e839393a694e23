"""`Sharded` where programs are unusual: keys, explicit meshes, odd lengths, layers inside."""

import pytest

import parscan_bp as pb

START = """
import jax, jax.numpy as jnp
import numpy as np
import parscan_bp as pb
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

devices = np.array(jax.devices())
mesh = Mesh(devices, ("time",))

def raises(kind, words, call):
    try:
        call()
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(words)
"""

KEYS = (
    START
    + """
def step(carry, x):
    h, key = carry
    key, own = jax.random.split(key)
    h = jnp.tanh(0.9 * h + x * jax.random.normal(own, h.shape))
    return (h, key), (h, jax.random.key_data(own))

first, xs = (jnp.ones(2), jax.random.key(3)), jnp.arange(9.0)
def run(scan):
    def loss(h, xs):
        (h, key), (hs, datas) = scan(step, (h, first[1]), xs)
        return (hs**2).sum() + h.sum(), (jax.random.key_data(key), datas)
    return jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(first[0], xs)

(want, told), slopes = run(lax.scan)
for method in ("turns", "auto"):
    solver = pb.Sharded("time", mesh, method=method)
    (got, ours), ours_slopes = run(lambda *args: pb.scan(*args, solver=solver))
    jax.tree.map(np.testing.assert_array_equal, ours, told)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
                 (got, ours_slopes), (want, slopes))
"""
)

EXPLICIT = (
    START
    + """
explicit = jax.make_mesh((4,), ("time",), axis_types=(jax.sharding.AxisType.Explicit,))
step = lambda h, x: (jnp.tanh(h + x), h)
h = jnp.ones(2)
def slopes(scan, xs):
    return jax.grad(lambda xs: (scan(step, h, xs)[1] ** 2).sum())(xs)

ours = lambda *args: pb.scan(*args, solver=pb.Sharded("time", explicit))
for length in (7, 8):
    xs = jnp.linspace(0, 1, 2 * length).reshape(length, 2)
    want = slopes(lax.scan, xs)
    np.testing.assert_allclose(slopes(ours, xs), want, rtol=1e-5)
    with jax.set_mesh(explicit):
        got = jax.jit(lambda xs: slopes(ours, xs))(xs)
    np.testing.assert_allclose(got, want, rtol=1e-5)

both = jax.make_mesh((2, 2), ("data", "time"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
xs = jax.device_put(jnp.linspace(0, 1, 16).reshape(4, 4), NamedSharding(both, P("time", "data")))
h = jax.device_put(jnp.ones(4), NamedSharding(both, P("data")))
for given in (both, None):
    ours = lambda h, xs: pb.scan(step, h, xs, solver=pb.Sharded("time", given))[1]
    raises(TypeError, "jax.set_mesh(mesh):` around the call is wanted", lambda: ours(h, xs))
    with jax.set_mesh(both):
        got = jax.jit(jax.grad(lambda h, xs: ours(h, xs).sum(), (0, 1)))(h, xs)
    plain = jax.grad(lambda h, xs: lax.scan(step, h, xs)[1].sum(), (0, 1))
    want = plain(jnp.ones(4), np.asarray(xs))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), got, want)
"""
)

SORTED = (
    START
    + """
steps = {
    "sort": lambda c, x: (jnp.sort(c + x), c),
    "median": lambda c, x: (0.5 * c + x, jnp.median(x - c)),
    "top_k": lambda c, x: (c + x, lax.top_k(c, 2)[0]),
}
rng = np.random.default_rng(0)
h = jnp.asarray(rng.normal(size=3))
for length, names in ((10, list(steps)), (3, ["sort"])):
    xs = jnp.asarray(rng.normal(size=(length, 3)))
    def slopes(scan, h, xs):
        def loss(step, h, xs):
            carry, ys = scan(step, h, xs)
            return (carry**2).sum() + (ys**2).sum()
        slope = jax.grad(loss, (1, 2))
        return {name: slope(steps[name], h, xs) for name in names}
    ours = lambda *args: pb.scan(*args, solver=pb.Sharded("time", mesh))
    got, want = (jax.jit(lambda h, xs, f=f: slopes(f, h, xs))(h, xs) for f in (ours, lax.scan))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), got, want)
"""
)

INSIDE = (
    START
    + """
from parscan_bp.layers import Linear, init

layers = [Linear(4), jax.nn.tanh] * 4
params, x = init(layers, jax.random.key(0), (4,)), jnp.ones((2, 4))
value = lambda params, solver: (pb.chain(layers, params, x, solver=solver) ** 2).sum()
want = jax.value_and_grad(value)(params, None)
solver = pb.Sharded("stage")
close = lambda got, want: jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), got, want
)
stages = Mesh(devices, ("stage",))
each = lambda params: value(params, solver)
inside = jax.shard_map(each, mesh=stages, in_specs=P(), out_specs=P())
close(jax.jit(jax.value_and_grad(inside))(params), want)
mapped = jax.pmap(lambda _, p: each(p), axis_name="stage", in_axes=(0, None))(jnp.arange(4), params)
close(mapped, jnp.broadcast_to(want[0], 4))
typed = jax.make_mesh((4,), ("stage",), axis_types=(jax.sharding.AxisType.Explicit,))
close(jax.jit(lambda params: value(params, pb.Sharded("stage", typed)))(params), want[0])

def inner(h, x):
    return h + pb.scan(lambda a, b: (a + b, b), 0.0, jnp.ones(4) * x, solver=SOLVER)[0], h

SOLVER = pb.Sharded("time", mesh)
raises(NotImplementedError, "devices are at different steps, and would wait",
       lambda: pb.scan(inner, 0.0, jnp.ones(8), solver=SOLVER))

def odd(x):
    return pb.scan(lambda h, x: (h + x, h), jnp.ones(2), x, solver=pb.Sharded("tim"))[0]
call = jax.shard_map(odd, mesh=mesh, in_specs=P("time"), out_specs=P())
raises(TypeError, "mesh: there is none with an axis 'tim'", lambda: call(jnp.ones((8, 2))))
"""
)

LAYERS = (
    START
    + """
from flax import linen, nnx

xs = jnp.ones((8, 2, 3))
solver = pb.Sharded("time")
lengths = jnp.array([3, 8])
theirs = pb.linen.RNN(linen.GRUCell(4), time_major=True, solver=solver)
variables = theirs.init(jax.random.key(0), xs[:2])

def rnn(library=pb.nnx, **options):
    cell = nnx.GRUCell(3, 4, rngs=nnx.Rngs(0))
    return library.RNN(cell, time_major=True, **options)

def ours(**options):
    return rnn(solver=solver, **options)

calls = {
    "reverse": [
        lambda x: ours(reverse=True)(x),
        lambda x: ours()(x, reverse=True),
        lambda x: pb.nnx.Bidirectional(ours(), ours(), time_major=True)(x),
        lambda x: theirs.apply(variables, x, reverse=True),
    ],
    "seq_lengths": [
        lambda x: ours()(x, seq_lengths=lengths),
        lambda x: theirs.apply(variables, x, seq_lengths=lengths),
    ],
}
parts = xs.reshape(4, 2, 2, 3)
for name, layers in calls.items():
    for layer in layers:
        raises(NotImplementedError, name + ": inside of jax.shard_map or jax.pmap the layer",
               lambda: jax.pmap(layer, axis_name="time")(parts))
got, want = jax.pmap(lambda x: ours()(x), axis_name="time")(parts), rnn(nnx)(xs)
np.testing.assert_allclose(got.reshape(want.shape), want, rtol=1e-5)
"""
)


@pytest.mark.parametrize(
    "program",
    [KEYS, EXPLICIT, SORTED, INSIDE, LAYERS],
    ids=["keys", "explicit", "sorted", "inside", "layers"],
)
def test_unusual_programs(run_on_devices, program):
    run_on_devices(program.replace("import parscan_bp as pb\n", IMPORTS, 1), 4)


IMPORTS = "import parscan_bp as pb\nimport parscan_bp.linen, parscan_bp.nnx\n"


def test_links_are_checked():
    with pytest.raises(ValueError, match="latency: got -1"):
        pb.parallel.Link(-1, 1)
    with pytest.raises(ValueError, match="bandwidth: got 0; a positive number"):
        pb.parallel.Link(0, 0)
    with pytest.raises(TypeError, match="bandwidth: got 'b'"):
        pb.parallel.Link(0, "b")


def test_what_launch_is_given_is_checked():
    with pytest.raises(TypeError, match=r"arguments: got \[1\]"):
        pb.parallel.launch("math:factorial", 1, arguments=[1])
    with pytest.raises(TypeError, match="arguments: got 'abc'"):
        pb.parallel.launch("math:factorial", 1, arguments="abc")
    with pytest.raises(TypeError, match=r"environment: got \{'A': 1\}; strings"):
        pb.parallel.launch("math:factorial", 1, environment={"A": 1})
    with pytest.raises(TypeError, match="mesh: got 'x'"):
        pb.parallel.measure_link("x")
