"""What the tests of the Flax layers share: sizes, call options, inputs, comparisons."""

import jax
import jax.numpy as jnp
from flax import nnx

from tests.family import assert_derivatives_close, jit_once

BATCH, TIME, INPUTS, HIDDEN = 3, 9, 2, 4
FLOAT = jnp.zeros(()).dtype
# Relative to a leaf's largest entry.
TOLERANCE = {"float64": 1e-10, "float32": 2e-5}[str(FLOAT)]
LENGTHS = jnp.array([9, 1, 6])

OPTIONS = {
    "plain": {},
    "time_major": {"time_major": True, "return_carry": True},
    "reverse": {"reverse": True, "return_carry": True},
    "seq_lengths": {"seq_lengths": LENGTHS, "return_carry": True},
    "keep_order": {"seq_lengths": LENGTHS, "reverse": True, "keep_order": True},
    "bidirectional": {"seq_lengths": LENGTHS, "return_carry": True},
}


def inputs(options=None, seed=0):
    """Random inputs, batch first or time first as the options say."""
    x = jax.random.normal(jax.random.key(seed), (BATCH, TIME, INPUTS), FLOAT)
    return jnp.swapaxes(x, 0, 1) if (options or {}).get("time_major") else x


def scalar(outputs):
    """A loss that weighs every entry of every output differently."""
    leaves = jax.tree.leaves(outputs)
    return sum(jnp.sum(jnp.sin(a + jnp.arange(a.size).reshape(a.shape))) for a in leaves)


def nnx_jit_once(f):
    """`jit_once` of a function of an nnx model and an input; changes of its state are lost."""

    def run(model, x):
        graph, state = nnx.split(model)
        return jit_once(lambda state, x: f(nnx.merge(graph, state), x))(state, x)

    return run


def assert_close(got, want, tolerance=TOLERANCE, case=""):
    """Leaves of two gradients, whatever containers hold them."""
    assert_derivatives_close(jax.tree.leaves(got), jax.tree.leaves(want), tolerance, case=case)
