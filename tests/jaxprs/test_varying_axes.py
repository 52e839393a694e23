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
"""


def test_rules_are_traced_for_values_that_vary(run_on_devices):
    run_on_devices(PROGRAM, 2)
