"""The shortest dtype that derivatives go through, and no dtype that they do not."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import parscan_bp as pb
from parscan_bp.jaxprs.precision import shortest_dtype


def short(a, dtype=jnp.bfloat16):
    return jnp.tanh(a.astype(dtype)).astype(a.dtype)


def in_a_loop(scan):
    return lambda h, x: scan(lambda c, _: (short(c), None), h + x, None, length=3)[0]


STEPS = {
    "input alone": (lambda h, x: h + short(x), jnp.float32),
    "value, no derivative": (lambda h, x: h * lax.stop_gradient(short(h)), jnp.float32),
    "carry": (lambda h, x: short(h) + x, jnp.bfloat16),
    "one of two": (lambda h, x: short(h, jnp.float16) + short(h), jnp.bfloat16),
    "branch": (lambda h, x: lax.cond(x[0] > 0, short, jnp.tanh, h), jnp.bfloat16),
    "call": (lambda h, x: jax.jit(jax.checkpoint(short))(h) + x, jnp.bfloat16),
    "its own derivative": (lambda h, x: jax.nn.relu(h.astype(jnp.float16)), jnp.float16),
    "loop": (in_a_loop(lax.scan), jnp.bfloat16),
    "loop of the library": (in_a_loop(pb.scan), jnp.bfloat16),
    "nothing": (lambda h, x: x, None),
}


@pytest.mark.parametrize(("step", "dtype"), STEPS.values(), ids=STEPS)
def test_shortest(step, dtype):
    jaxpr = jax.make_jaxpr(step)(jnp.ones(2, jnp.float32), jnp.ones(2, jnp.float32))
    assert shortest_dtype(jaxpr, [0], [0]) == dtype
