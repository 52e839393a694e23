"""Layers of Flax divided by a mesh: values, gradients, one exchange, what goes wrong."""

import pytest

PROGRAM = """
import jax, jax.numpy as jnp
import numpy as np
from flax import nnx
import parscan_bp.nnx
from parscan_bp.parallel import collective_stats

mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "model"))
cases = [
    (nnx.Linear, (6, 8), {}, (4, 6)), (nnx.Linear, (6, 7), {"use_bias": False}, (4, 3, 6)),
    (nnx.Conv, (4, 6, (3, 3)), {"strides": 2, "feature_group_count": 2}, (4, 7, 5, 4)),
]
for theirs, args, how, shape in cases:
    ours = getattr(parscan_bp.nnx, theirs.__name__)
    plain = theirs(*args, rngs=nnx.Rngs(0), **how)
    module = ours(*args, mesh=mesh, rngs=nnx.Rngs(0), **how)
    x = jax.random.normal(jax.random.key(0), shape)
    loss = lambda module, x: (module(x) ** 2).sum()
    for f in (lambda m, x: m(x), nnx.grad(loss, argnums=(0, 1))):
        got, want = nnx.jit(f)(module, x), nnx.jit(f)(plain, x)
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5 * float(jnp.abs(b).max()))
    run = jax.jit(lambda x: module(x)).lower(x).compile()
    assert collective_stats(run)["all-gather"].count == 1
layer = parscan_bp.nnx.Linear(3, 4, mesh=mesh, rngs=nnx.Rngs(0))
for make, words in (
    (lambda: layer(jnp.ones((3, 3))), "batch: got 3 entries for 2 devices"),
    (lambda: parscan_bp.nnx.Linear(3, 4, mesh=mesh, data="model", rngs=nnx.Rngs(0)), "data: got"),
):
    try:
        make()
    except ValueError as error:
        assert words in str(error), error
    else:
        raise AssertionError(words)
how = {"padding": "CIRCULAR", "mesh": mesh, "rngs": nnx.Rngs(0)}
try:
    parscan_bp.nnx.Conv(2, 4, (3,), **how)(jnp.ones((2, 6, 2)))
except NotImplementedError as error:
    assert "take Flax's own" in str(error)
else:
    raise AssertionError
"""


@pytest.mark.reads_compiled
def test_layers_of_flax_are_divided(run_on_devices):
    run_on_devices(PROGRAM, 4)
