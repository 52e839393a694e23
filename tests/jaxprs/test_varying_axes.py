"""Inside `jax.shard_map` a type says over which mesh axes a value varies; so do traced rules."""

PROGRAM = """
import jax, jax.numpy as jnp, numpy as np, parscan_bp as pb
from jax.sharding import Mesh, PartitionSpec as P

mesh = Mesh(np.array(jax.devices()), ("devices",))

def gradient(scan):
    def loss(c, xs):
        # Of softplus, JAX's own rule is traced again; only the last carry has a cotangent.
        return scan(lambda c, x: (jax.nn.softplus(0.5 * c + x), c.sum()), c, xs)[0].sum()

    split = lambda c, xs: jax.vmap(jax.grad(loss, (0, 1)))(c, xs)
    return jax.shard_map(split, mesh=mesh, in_specs=P("devices"), out_specs=P("devices"))

c, xs = jnp.ones((4, 3)) / 3, jnp.linspace(-1, 1, 60).reshape(4, 5, 3)
want = jax.jit(gradient(jax.lax.scan))(c, xs)
for solver in (pb.Sweep(), pb.Chunked(chunks=2), pb.Blelloch(), pb.Associative()):
    got = jax.jit(gradient(lambda *a: pb.scan(*a, solver=solver)))(c, xs)
    for a, b in zip(got, want):
        np.testing.assert_allclose(a, b, rtol=1e-5)

coloured = pb.layers.Coloured(lambda _, x: x[1:] * x[:-1], [0, 0, 1, 1], [0, 1, 1, 2])
sums = [lambda x: jnp.sum(pb.chain([coloured], [None], x, solver=s) ** 2) for s in (pb.Sweep(),)]
sums.append(lambda x: jnp.sum(jax.vmap(lambda x: x[1:] * x[:-1])(x) ** 2))
each = [jax.vmap(jax.grad(f)) for f in sums]
got, want = (
    jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("devices"), out_specs=P("devices")))(xs)
    for f in each
)
np.testing.assert_allclose(got, want, rtol=1e-5)
"""

EXPLICIT = """
import jax, jax.numpy as jnp, numpy as np, parscan_bp as pb
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Explicit,))
jax.set_mesh(mesh)
put = lambda a, *spec: jax.device_put(a, NamedSharding(mesh, P(*spec)))
at = jnp.eye(3) / 2, put(jnp.ones((4, 3)), "d", None), put(jnp.ones((6, 4, 3)), None, "d", None)

def gradient(scan):
    # Only the last carry has a cotangent.
    last = lambda w, h, xs: scan(lambda h, x: (jnp.tanh(h @ w + x), None), h, xs)[0]
    return jax.jit(jax.grad(lambda *at: jnp.sum(last(*at) ** 2), (0, 1, 2)))(*at)

want = gradient(jax.lax.scan)
for solver in (pb.Chunked(chunks=2), pb.Blelloch(), pb.Associative()):
    for a, b in zip(gradient(lambda *a: pb.scan(*a, solver=solver)), want):
        assert jax.typeof(a) == jax.typeof(b)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
"""


def test_rules_are_traced_for_values_that_vary(run_on_devices):
    run_on_devices(PROGRAM, 2)


def test_a_right_hand_side_that_is_zero_lies_where_the_carry_does(run_on_devices):
    run_on_devices(EXPLICIT, 2, alone=True)
