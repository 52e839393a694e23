"""What is known to commute with `jax.vmap`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import Primitive, primitives

from parscan_bp.jaxprs.batching import batched, mapped, unbatchable
from parscan_bp.jaxprs.primitive_kinds import BATCHED, DRAWS
from tests.family.outside import INSIDE, STEPS, any_negative, centred

UNKNOWN = (
    "after_all approx_top_k create_token empty2 eval_jaxpr get rng_bit_generator rng_uniform "
    "select_and_scatter swap"
)
"""Tokens and references, which have effects; what draws by itself; what has no batching rule; what
is an approximation of its own."""


def test_every_public_primitive_is_decided():
    names = {p.name for p in vars(primitives).values() if isinstance(p, Primitive)}
    assert names - BATCHED - DRAWS <= set(UNKNOWN.split())


M = jnp.eye(3) + 0.1
KNOWN = {
    "linear algebra": lambda m: jnp.linalg.inv(m) @ jnp.linalg.solve(m, m) + jnp.linalg.det(m),
    "eigenvalues": lambda m: jnp.linalg.eigh(m)[1] + jnp.linalg.svd(m)[0] + jnp.linalg.qr(m)[0],
    "expm": lambda m: jax.scipy.linalg.expm(m) + jax.scipy.linalg.cholesky(m @ m.T),
    "fft": lambda m: jnp.fft.rfft(m).real + jnp.fft.fftn(m)[:, :2].imag,
    "order": lambda m: jnp.sort(m) + jnp.argsort(m) + lax.top_k(m, 3)[0] + jnp.median(m),
    "search": lambda m: (
        jnp.searchsorted(m[0], m) + jnp.digitize(m, m[0]) + jnp.interp(m, m[0], m[1])
    ),
    "places": lambda m: m.at[0].add(m[1]).at[1].set(2.0).at[2].max(m[jnp.array([0]), 1]),
    "sums": lambda m: jnp.cumsum(m) + jnp.cumprod(m, 0).sum() + lax.cumlogsumexp(m).sum(),
    "nn": lambda m: jax.nn.gelu(jax.nn.softmax(jax.nn.silu(m))) + jax.nn.logsumexp(jax.nn.elu(m)),
    "special": lambda m: jax.scipy.special.gammainc(m, m) + jax.scipy.special.betainc(m, m, m),
    "convolution": lambda m: jnp.convolve(m[0], m[1]).sum() + jax.scipy.signal.convolve2d(m, m),
    "draws": lambda m: (
        jax.random.gamma(jax.random.fold_in(jax.random.key(0), m[0, 0].astype(int)), 2.0)
        + jax.random.permutation(jax.random.PRNGKey(1), m)
        + jax.random.categorical(jax.random.key(2), m)
    ),
    "loops": lambda m: lax.while_loop(
        lambda v: v.sum() < 9, lambda v: 2 * v, lax.fori_loop(0, 3, lambda k, v: v * k + m, m)
    ),
    "custom solve": lambda m: lax.custom_linear_solve(
        lambda v: m @ v, m[0], lambda _, b: b, lambda _, b: b
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_what_jax_is_made_of_is_known(name):
    assert unbatchable(jax.make_jaxpr(KNOWN[name])(M)) is None


@pytest.mark.parametrize("name", STEPS)
def test_others_are_named(name):
    found = unbatchable(jax.make_jaxpr(STEPS[name])(M[0], M[1]))
    assert found is not None
    assert found.split()[0] == name


@pytest.mark.parametrize("name", INSIDE)
def test_at_every_depth(name):
    assert unbatchable(jax.make_jaxpr(INSIDE[name])(M[0], M[1])) == "any_negative"


def test_in_the_rule_of_a_rule():
    @jax.custom_jvp
    def slope(x):
        return jnp.cos(x)

    @jax.custom_jvp
    def f(x):
        return jnp.sin(x)

    slope.defjvp(lambda at, ts: (slope(*at), -jnp.where(any_negative.bind(*at), 0.5, 1.0) * ts[0]))
    f.defjvp(lambda at, ts: (f(*at), slope(*at) * ts[0]))
    assert unbatchable(jax.make_jaxpr(f)(M)) == "any_negative"


def test_in_a_reverse_rule():
    @jax.custom_vjp
    def f(x):
        return jnp.sin(x)

    f.defvjp(lambda x: (f(x), x), lambda x, ct: (ct * jnp.where(any_negative.bind(x), 0.5, 1.0),))
    assert unbatchable(jax.make_jaxpr(f)(M)) == "any_negative"


def test_a_rule_that_applies_itself_ends():
    @jax.custom_jvp
    def f(x):
        return 2 * x

    f.defjvp(lambda at, ts: (f(*at), f(*ts)))
    assert unbatchable(jax.make_jaxpr(f)(M)) is None


def test_a_name_alone_does_not_make_it_known():
    namesake = Primitive("sin")
    namesake.def_abstract_eval(lambda a: a)
    assert unbatchable(jax.make_jaxpr(namesake.bind)(M)) == "sin"


def test_one_after_the_other():
    f = lambda a, b: {"sum": centred.bind(a) + b["b"]}  # noqa: E731
    got = mapped(f, (0, {"b": None}), in_turn=True)(M, {"b": M[0]})["sum"]
    want = M - M.mean(1, keepdims=True) + M[0]
    np.testing.assert_allclose(got, want, rtol=1e-6)
    np.testing.assert_allclose(batched(centred.bind)(M), want - M[0], atol=1e-6)
    assert "scan" not in str(jax.make_jaxpr(batched(jnp.sin))(M))
