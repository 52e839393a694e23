"""Layers on a divided domain equal one device, whatever their windows and the blocks."""

import pytest

PROGRAM = """
import itertools
import jax
from tests.grids.domain_cases import cases, check

for case in itertools.islice(cases({first}), {count}):
    check(case)
"""

INTERIOR = """
import functools
import jax, jax.numpy as jnp
import numpy as np
import parscan_bp as pb
from parscan_bp.layers import Conv, MaxPool

for layer, size in ((Conv(3, (3, 3), bias=False), 16), (MaxPool((3, 3), 1, "SAME"), 13)):
    grid, features = pb.parallel.Grid(height=4), (size, 5, 2)
    x = jax.random.normal(jax.random.key(1), (2, *features))
    plain = pb.parallel.divide([layer], features, grid)
    apart = pb.parallel.divide([layer], features, grid, overlap=True)
    assert apart.places[0].layer.overlap and not plain.places[0].layer.overlap
    params = plain.init(jax.random.key(0), jnp.float32)

    def all_of(stack, params, x):
        y, pull = jax.vjp(stack, params, x)
        return y, *pull(jnp.cos(y))

    want, got = (jax.jit(functools.partial(all_of, s))(params, x) for s in (plain, apart))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)

    def independent(stack):
        '''The values of the layer that no exchange comes before.'''
        jaxpr = jax.make_jaxpr(stack)(params, x).jaxpr
        (inner,) = [eqn.params["jaxpr"] for eqn in jaxpr.eqns if eqn.primitive.name == "shard_map"]
        after, free = set(), 0
        for eqn in inner.eqns:
            late = eqn.primitive.name == "ppermute" or any(id(v) in after for v in eqn.invars)
            after |= {id(v) for v in eqn.outvars} if late else set()
            free += not late and eqn.primitive.name in ("conv_general_dilated", "reduce_window_max")
        return free

    assert (independent(plain), independent(apart)) == (0, 1), layer
"""

PADDED = """
import functools
import jax, jax.numpy as jnp
import numpy as np
import parscan_bp as pb
from parscan_bp.layers import Conv, Elementwise, LayerNorm, activations, as_layer

# At zeros these have no derivative.
root = Elementwise(lambda x: jnp.sqrt(jnp.abs(x)) + jnp.log(x * x))
layers, features = [Conv(3, (3, 3)), LayerNorm(epsilon=0.0), root, Conv(2, (2, 2))], (7, 5, 2)
stack = pb.parallel.divide(layers, features, pb.parallel.Grid(height=4))
params = pb.layers.init(layers, jax.random.key(0), features, jnp.float32)
x = jax.random.normal(jax.random.key(1), (2, *features), jnp.float32)
plain = lambda params, x: activations(tuple(map(as_layer, layers)), params, x)[-1]

def gradients(f, params, x):
    return jax.grad(lambda params, x: (f(params, x) ** 2).sum(), (0, 1))(params, x)

want = jax.jit(functools.partial(gradients, plain))(params, x)
got = jax.jit(functools.partial(gradients, stack))(stack.place(params), x)
for a, b in zip(jax.tree.leaves((stack.collect(got[0]), got[1])), jax.tree.leaves(want)):
    assert np.isfinite(b).all()
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * np.abs(b).max())
"""


def test_generated_stacks_equal_one_device(run_on_devices):
    run_on_devices(PROGRAM.format(first=0, count=6), 8)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 11000, 1000))
def test_many_generated_stacks_equal_one_device(first, run_on_devices):
    run_on_devices(PROGRAM.format(first=first, count=52), 8)


def test_the_interior_waits_for_no_halo(run_on_devices):
    run_on_devices(INTERIOR, 4)


def test_what_is_in_the_padding_reaches_no_gradient(run_on_devices):
    run_on_devices(PADDED, 4)
