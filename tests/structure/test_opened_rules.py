"""Rules of `custom_jvp` that apply functions with a rule to the tangents: each is opened once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from parscan_bp.jaxprs.dependence import dependencies
from parscan_bp.jaxprs.precision import shortest_dtype
from parscan_bp.structure import couples_mapped_axis, find_structure, unsupported

QUESTIONS = {
    "structure": lambda body: find_structure(body, 0, 1).batch_axes == ((0, 1),),
    "dependence": lambda body: dependencies(body, derivative=True).all(),
    "precision": lambda body: shortest_dtype(body, [0], [0]) == body.out_avals[0].dtype,
    "unsupported": lambda body: not unsupported(body),
    "coupled": lambda body: couples_mapped_axis(body, 0, 1) is None,
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_rule_that_applies_itself_is_opened_once(question):
    opened = []

    @jax.custom_jvp
    def twice(h):
        return 2 * h

    @twice.defjvp
    def _(primals, tangents):
        opened.append(None)
        return twice(*primals), twice(twice(*tangents)) / 2

    body = jax.make_jaxpr(twice)(jnp.ones((2, 3)))
    assert QUESTIONS[question](body)
    # Of a rule that is opened JAX keeps the program, but for jax_custom_jvp3.
    assert 1 <= len(opened) <= 1 + getattr(jax.config, "jax_custom_jvp3", False)


def test_what_a_function_of_tangents_detaches_is_followed():
    """Within a rule values are all there is: `stop_gradient` returns them."""

    @jax.custom_jvp
    def first(h):
        return h

    first.defjvp(lambda p, t: (first(*p), jnp.roll(jax.lax.stop_gradient(first(*t)), 1, 0)))
    body = jax.make_jaxpr(first)(jnp.ones((2, 3)))
    assert dependencies(body, derivative=True).all()
    assert find_structure(body, 0, 1).batch_axes == ((),)
    t = jnp.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(jax.jvp(first, (t,), (t,))[1], t[::-1])


def test_a_loop_of_dynamic_length_in_a_function_of_tangents_is_named():
    """JAX transposes the function's program, not its rule."""

    @jax.custom_jvp
    def solved(b):
        return jax.lax.while_loop(lambda v: jnp.max(v) < 9, lambda v: 2 * v, b)

    solved.defjvp(lambda p, t: (solved(*p), solved(*t)))
    (reason,) = unsupported(jax.make_jaxpr(solved)(jnp.ones(3)))
    assert reason.primitive == "while"
    with pytest.raises(ValueError, match="while_loop"):
        jax.grad(lambda b: jnp.sum(solved(b)))(jnp.ones(3))
