"""Values that a program makes twice are made once."""

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr

from parscan_bp.jaxprs.repeats import without_repeats


def _names(f, *args):
    closed = jax.make_jaxpr(f)(*args)
    once = ClosedJaxpr(without_repeats(closed.jaxpr), closed.consts)
    want = jax.core.eval_jaxpr(closed.jaxpr, closed.consts, *args)
    got = jax.core.eval_jaxpr(once.jaxpr, once.consts, *args)
    for a, b in zip(got, want, strict=True):
        assert (a == b).all()
    return [eqn.primitive.name for eqn in once.jaxpr.eqns]


def test_a_chain_that_is_repeated_is_made_once():
    def f(a):
        return jnp.sin(2 * a) + 1, jnp.cos(jnp.sin(2 * a))

    assert _names(f, jnp.ones(3)) == ["mul", "sin", "add", "cos"]


def test_results_may_be_the_same():
    assert _names(lambda a: (jnp.sin(a), jnp.sin(a)), jnp.ones(3)) == ["sin"]


def test_other_constants_types_and_parameters_are_others():
    def f(a):
        halves = a * 0.5, a * 0.25, a.astype(jnp.bfloat16) * jnp.bfloat16(0.5)
        return *halves, a[:1], a[1:2], a.sum(0), a.sum(0, keepdims=True)

    names = _names(f, jnp.arange(3.0))
    assert names.count("mul") == 3 and names.count("slice") == 2 and names.count("reduce_sum") == 1


def test_programs_that_are_called_stay():
    twice = lambda a: jax.lax.fori_loop(0, 2, lambda _, b: 2 * b, a)  # noqa: E731
    assert _names(lambda a: (twice(a), twice(a)), jnp.ones(3)).count("scan") == 2
