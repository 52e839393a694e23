"""Functions with a rule of their own, whose values and tangents are mapped to the same axes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import batching

from parscan_bp.primitives.mapping import in_place
from parscan_bp.primitives.with_rule import WithRule
from tests.family import array, together


def _sines(x):
    """Under `vmap` a loop's stacked outputs have the mapped axis second, the number has none."""
    return lax.scan(lambda c, z: (c, jnp.sin(z)), 0.0, x)[1], jnp.float32(3)


def _rule(primals, tangents):
    """Under `vmap` its results have the mapped axis first."""
    (x,), (t,) = primals, tangents
    return (jnp.sin(x), jnp.float32(3)), (jnp.cos(x) * t, jnp.zeros(()) * t[0])


own = WithRule(_sines, _rule)
plain = lambda x: (jnp.sin(x), jnp.float32(3))  # noqa: E731

GRID = np.arange(16.0).reshape(4, 4)
WORDS = {
    "vmap": jax.vmap,
    "jit of vmap": lambda f: jax.jit(jax.vmap(f)),
    "vmap of jit": lambda f: jax.vmap(jax.jit(f)),
    "checkpoint of vmap": lambda f: jax.checkpoint(jax.vmap(f)),
    "unmapped": lambda f: jax.jit(jax.vmap(f, out_axes=(1, None))),
    "second axis": lambda f: jax.jit(jax.vmap(f, in_axes=1, out_axes=(0, None))),
    "vmap twice": lambda f: jax.jit(
        lambda x: jax.tree.map(
            lambda v: v[1], jax.vmap(jax.vmap(f))(jnp.arange(3.0)[:, None, None] * x)
        )
    ),
    "scan around": lambda f: lambda x: lax.scan(lambda c, z: (c, jax.vmap(f)(z)), 0, x[None])[1],
}


@pytest.mark.sampled
@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize("word", WORDS)
def test_tangents_have_the_axes_of_the_values(word, size, request):
    def derivatives(g, x):
        t = jnp.cos(3 * x)

        def loss(x):
            y = g(x)[0]
            return jnp.sum(jnp.cos(y * jnp.arange(y.size).reshape(y.shape)))

        return g(x), jax.jvp(g, (x,), (t,)), jax.grad(loss)(x), jax.linearize(g, x)[1](t)

    def case(word, size):
        both = [WORDS[word](f) for f in (own, plain)]
        return lambda x: [derivatives(g, x) for g in both], (array(GRID[:size] / 9, "float32"),)

    got, want = together(request, case)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_nothing_is_moved_where_the_two_agree():
    agreeing = WithRule(jnp.sin, lambda p, t: (jnp.sin(*p), jnp.cos(*p) * t[0]))
    mapped = jax.jit(jax.vmap(agreeing))
    x = jnp.ones((3, 4))
    text = jax.jit(lambda x, t: jax.jvp(mapped, (x,), (t,))).lower(x, x).as_text()
    assert "transpose" not in text and "broadcast_in_dim" not in text


def test_another_setting_is_another_trace():
    product = WithRule(lambda a: a @ a, lambda p, t: (p[0] @ p[0], t[0] @ p[0] + p[0] @ t[0]))
    a = jnp.ones((2, 2))
    seen = []
    for precision in ("default", "highest"):
        with jax.default_matmul_precision(precision):
            seen.append(str(jax.make_jaxpr(product)(a)))
    assert seen[0] != seen[1]


def test_results_are_left_where_they_come_to_stand():
    where = []

    def results(x):
        return [x + 1, lax.scan(lambda c, z: (c, jnp.sin(z)), 0.0, x)[1], jnp.ones(2)]

    def rule(how, values, axes):
        made, at = in_place(results, axes, how)(*values)
        where.extend(at)
        return made, list(at)

    probe = Primitive("probe")
    probe.multiple_results = True
    batching.fancy_primitive_batchers[probe] = rule
    jax.vmap(probe.bind)(jnp.ones((3, 4)))
    assert where == [0, 1, None]


CALLS = {"nothing_saveable": 5, "everything_saveable": 4}
"""Two of each function, for its value and its slope; and that of the inner value once more."""


@pytest.mark.parametrize("policy", CALLS)
def test_what_is_known_keeps_its_rule_and_is_made_again_where_it_may_be(policy):
    """The rule is not that of the sine: a program without it would have other derivatives."""
    slow = WithRule(jnp.sin, lambda p, t: (slow(*p), 0.5 * slow(*p) * t[0]))
    f = jax.checkpoint(lambda x: slow(slow(x)), policy=getattr(jax.checkpoint_policies, policy))
    gradient = jax.grad(lambda x: jnp.sum(f(x)))
    x = jnp.arange(4.0)
    y, z = np.sin(x), np.sin(np.sin(x))
    np.testing.assert_allclose(gradient(x), z * y / 4, rtol=1e-5)
    second = jax.grad(lambda x: jnp.sum(gradient(x)))(x)
    np.testing.assert_allclose(second, (z * y / 2 * y + z * y) / 8, rtol=1e-5)
    assert str(jax.make_jaxpr(gradient)(x)).count("call_with_rule") == CALLS[policy]
