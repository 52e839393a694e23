"""Replaying a traced program."""

import jax
import jax.numpy as jnp

from parscan_bp.jaxprs.replay import bind as same
from parscan_bp.jaxprs.replay import evaluate, interpret


def test_outputs_that_are_literals_are_arrays_of_their_types():
    half = jnp.asarray(0.5, jnp.float16)
    closed = jax.make_jaxpr(lambda x: (0.5, half, 3, True, jnp.asarray(2, jnp.bfloat16), x))(1.0)
    for out in (evaluate(closed, [1.0]), interpret(closed, [1.0], same)):
        got = [jax.typeof(value) for value in out[:-1]]
        want = [v.aval for v in closed.jaxpr.outvars[:-1]]
        assert [(a.shape, a.dtype, a.weak_type) for a in got] == [
            (a.shape, a.dtype, a.weak_type) for a in want
        ]
