"""Steps with collectives along an axis that is mapped outside: no side effects."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import parscan_bp as pb

W = jnp.array([0.3, 0.5])
C, XS = jnp.arange(4.0).reshape(2, 2) / 4, jnp.cos(jnp.arange(12.0)).reshape(2, 3, 2)
AT = W, C, XS


@jax.custom_jvp
def spike(v):
    return (v > 0).astype(v.dtype)


# Its value is no call of the function: from then on it is a plain comparison.
spike.defjvp(lambda p, t: ((p[0] > 0).astype(p[0].dtype), t[0] / (1 + p[0] ** 2)))


STEPS = {
    "carry": lambda w, c, x: (jnp.tanh(c * w + x + lax.psum(c, "i") / 8), c),
    "input": lambda w, c, x: (jnp.tanh(c * w + lax.pmean(x, "i")), c),
    "rule": lambda w, c, x: (jax.nn.relu(c * w + lax.pmean(x, "i")), jax.nn.relu(c)),
    "later": lambda w, c, x: (c * spike(c * w + lax.pmean(x, "i")) + w * x, c * spike(x + c)),
    "output": lambda w, c, x: (jnp.tanh(c * w + x), lax.psum(c, "i")),
    "index": lambda w, c, x: (jnp.tanh(c * w + x * lax.axis_index("i")), c),
}


def hvp(name, scan):
    def one(w, c, xs):
        out = scan(lambda c, x: STEPS[name](w, c, x), c, xs)
        return sum(jnp.sin(leaf).sum() for leaf in jax.tree.leaves(out))

    def loss(*at):
        return jax.vmap(one, (None, 0, 0), axis_name="i")(*at).sum()

    return lambda at: jax.jvp(jax.grad(loss, (0, 1, 2)), at, at)


@pytest.mark.parametrize("name", STEPS)
def test_a_named_solver_takes_them_or_says_what_is_coupled(name):
    sweep, tree = (functools.partial(pb.scan, solver=s) for s in (pb.Sweep(), pb.Blelloch()))
    scans = [lax.scan, sweep, tree]
    if name == "carry":
        with pytest.raises(NotImplementedError, match=r"psum: couples the carries of a mapped"):
            hvp(name, scans.pop())(AT)
    want, *each = jax.jit(lambda at: [hvp(name, scan)(at) for scan in scans])(AT)
    for got in each:
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_without_a_solver_they_are_left_to_lax_scan():
    def one(c, xs):
        return jnp.stack(
            [jnp.asarray("psum" in pb.explain(lambda c, x: STEPS["carry"](W, c, x), c, xs).reason)]
        )

    assert jax.vmap(one, axis_name="i")(C, XS).all()


def test_collectives_of_devices(run_on_devices):
    run_on_devices(
        """
import jax, jax.numpy as jnp, numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P
import parscan_bp as pb
mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
w, c, xs = jnp.array([0.3, 0.5]), jnp.arange(4.0).reshape(2, 2), jnp.cos(jnp.arange(12.0))
xs = xs.reshape(2, 3, 2)
def grad(scan):
    def one(w, c, xs):
        step = lambda c, x: (jnp.tanh(c * w + x + lax.psum(c, "i") / 8), lax.pmean(x, "i") * c)
        c, ys = scan(step, c[0], xs[0])
        return jnp.sin(c)[None], jnp.sin(ys)[None]
    mapped = jax.shard_map(one, mesh=mesh, in_specs=(P(), P("i"), P("i")), out_specs=P("i"))
    loss = lambda *at: sum(leaf.sum() for leaf in mapped(*at))
    return jax.jit(jax.grad(loss, (0, 1, 2)))(w, c, xs)
got = grad(lambda *args: pb.scan(*args, solver=pb.Sweep()))
for a, b in zip(got, grad(lax.scan)):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
""",
        2,
    )


def test_outputs_that_all_devices_share(run_on_devices):
    """They are left to `lax.scan`; a named solver says so, or leaves them as its caller allows."""
    run_on_devices(
        """
import jax, jax.numpy as jnp, numpy as np
import parscan_bp as pb
mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
P = jax.sharding.PartitionSpec
w, h, xs = jnp.array(0.3), jnp.ones((400, 2)), jnp.ones((6, 400, 2))

def gradient(scan):
    def loss(w, h, xs):
        step = lambda c, x: (jnp.tanh(c * w + x), jnp.sin(w * 3))
        c, ys = scan(step, h, xs)
        return jax.lax.psum(jnp.sum(c), "d") + jnp.sum(ys)
    specs = P(), P("d"), P(None, "d")
    mapped = jax.shard_map(loss, mesh=mesh, in_specs=specs, out_specs=P())
    return jax.jit(jax.grad(mapped))(w, h, xs)

class OrLax(pb.Sweep):
    leaves_to_lax = True

for scan in (pb.scan, lambda *args: pb.scan(*args, solver=OrLax())):
    np.testing.assert_allclose(gradient(scan), gradient(jax.lax.scan), rtol=1e-5)
try:
    gradient(lambda *args: pb.scan(*args, solver=pb.Sweep()))
except NotImplementedError as error:
    assert "the same along the mesh axes ['d']" in str(error), error
else:
    raise AssertionError("taken")
""",
        2,
    )
