"""A scan that is linear in what it is given: transposed, as by `jax.linear_transpose`.

There is nothing to differentiate: the reference is `jax.lax.scan` under the same transformations,
and the bilinear form itself.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import parscan_bp as pb
from tests.family import assert_derivatives_close
from tests.quickly import jit_quickly

SOLVERS = {"sweep": pb.Sweep(), "keeping": pb.Sweep(recompute=False), "blelloch": pb.Blelloch()}
SOLVERS |= {"none": None, "or lax": pb.Sweep(otherwise="lax"), "truncated": pb.Truncated(3)}

RNG = np.random.default_rng(0)
W = jnp.asarray(RNG.normal(size=(3, 3)) / 3)
K = jnp.asarray(RNG.normal(size=5))
AT = jnp.asarray(RNG.normal(size=(2, 3))), jnp.asarray(RNG.normal(size=(5, 2, 3)))
CT = jax.tree.map(jnp.cos, AT)
FLOOR = 1e-10 if jax.config.jax_enable_x64 else 2e-5


def _linear(scan, w, h, xs):
    """Linear in the carry and the inputs, by weights that are not."""

    def step(h, x):
        x, k = x
        new = h @ jnp.tanh(w) + jnp.cos(k) * x
        return new, 2 * new - h

    return scan(step, h, (xs, K))


def _turned(f, w, ct=CT):
    """``f(w, ., .)`` transposed."""
    return jax.linear_transpose(functools.partial(f, w), *AT)(ct)


def _number(tree):
    return sum(jnp.sum(jnp.sin(v)) for v in jax.tree.leaves(tree))


def _of_jvp(f, w):
    """The tangents of the scan after a square."""
    push = lambda *ts: jax.jvp(lambda h, xs: f(w, h * h, xs), AT, ts)[1]  # noqa: E731
    return jax.linear_transpose(jax.jit(push), *AT)


def _within(transform):
    return lambda f, w: _turned(transform(f), w)


WORDS = {
    "transposed": _turned,
    "jit within": _within(jax.jit),
    "checkpoint within": _within(jax.checkpoint),
    "vmap within": _within(lambda f: lambda w, h, xs: jax.vmap(f, (None, 0, 1), (0, 1))(w, h, xs)),
    "cond within": _within(
        lambda f: (
            lambda w, h, xs: lax.cond(w[0, 0] > 9, lambda h, x: (h, x), lambda *a: f(w, *a), h, xs)
        )
    ),
    "loop within": lambda f, w: jax.linear_transpose(
        lambda h: lax.fori_loop(0, 2, lambda _, h: f(w, h, 0 * AT[1])[0], h), AT[0]
    )(AT[0]),
    "vmap of weights": lambda f, w: jax.vmap(lambda w: _turned(f, w))(jnp.stack([w, 2 * w])),
    "vmap of cotangents": lambda f, w: jax.vmap(
        lambda s: _turned(f, w, jax.tree.map(lambda v: s * v, CT))
    )(K),
    "jvp": lambda f, w: jax.jvp(lambda w: _turned(f, w), (w,), (jnp.cos(w),))[1],
    "linearize": lambda f, w: jax.linearize(lambda w: _turned(f, w), w)[1](jnp.cos(w)),
    "grad": lambda f, w: jax.grad(lambda w: _number(_turned(f, w)))(w),
    "grad of grad": lambda f, w: jax.grad(
        lambda w: _number(jax.grad(lambda w: _number(_turned(f, w)))(w))
    )(w),
    "grad of checkpoint": lambda f, w: jax.grad(
        jax.checkpoint(lambda w: _number(_turned(jax.checkpoint(f), w)))
    )(w),
    "twice": lambda f, w: jax.linear_transpose(lambda ct: _turned(f, w, ct), CT)(AT)[0],
    "of jvp": lambda f, w: _of_jvp(f, w)(CT),
    "of jvp twice": lambda f, w: jax.linear_transpose(_of_jvp(f, w), CT)(AT)[0],
    "grad of jvp": lambda f, w: jax.grad(lambda w: _number(_of_jvp(f, w)(CT)))(w),
}
SOME = ("transposed", "checkpoint within", "grad of grad", "of jvp twice")
"""Enough for solvers by which nothing but the last two is computed in another way."""


@functools.cache
def _all(solver, words):
    scan = lax.scan if solver == "lax.scan" else functools.partial(pb.scan, solver=SOLVERS[solver])
    f = functools.partial(_linear, scan)
    return jit_quickly(lambda w: {name: WORDS[name](f, w) for name in words})(W)


@pytest.mark.parametrize(
    "solver", [s if s == "sweep" else pytest.param(s, marks=pytest.mark.slow) for s in SOLVERS]
)
def test_words_around_a_transposed_scan(solver):
    words = tuple(WORDS) if solver == "sweep" else SOME
    if solver == "truncated":
        words = SOME[:2]  # the rest are derivatives, which it does not tell exactly
    got, want = _all(solver, words), _all("lax.scan", words)
    for name in words:
        assert_derivatives_close(got[name], want[name], FLOOR, mode=name)
    value = sum(map(jnp.vdot, _linear(lax.scan, W, *AT), CT))
    np.testing.assert_allclose(sum(map(jnp.vdot, AT, got["transposed"])), value, rtol=1e-4)


@pytest.mark.parametrize("solver", ["sweep", pytest.param("none", marks=pytest.mark.slow)])
def test_a_scan_that_is_not_linear_has_no_transpose(solver):
    scan = functools.partial(pb.scan, solver=SOLVERS[solver])
    last = lambda h: scan(lambda h, _: (jnp.tanh(h), None), h, None, length=5)[0]  # noqa: E731
    with pytest.raises(NotImplementedError, match="tanh"):
        jax.linear_transpose(last, AT[0])(AT[0])


def test_layers_and_systems_are_transposed():
    """By a chain, a bare system, and a layer of Flax, each the matrix that it multiplies by."""
    w = jnp.tanh(W)
    layers, weights = [pb.layers.Linear(3, bias=False)] * 2, [{"kernel": w}, {"kernel": w}]
    maps = pb.operators.Dense(jnp.stack([w, w.T]))
    x, g = AT[0], AT[1][:3, 0]

    @jit_quickly
    def turned(x, g):
        through = lambda x: pb.chain(layers, weights, x, solver=pb.Sweep())  # noqa: E731
        solved = lambda g: pb.solve(pb.Uniform(maps, g), pb.Blelloch())  # noqa: E731
        return [jax.linear_transpose(f, v)(v)[0] for f, v in ((through, x), (solved, g))]

    found, carried = turned(x, g)
    w, x, g = (np.asarray(v, np.float64) for v in (w, x, g))
    np.testing.assert_allclose(found, x @ w.T @ w.T, rtol=1e-4, atol=1e-5)
    want = [g[0], g[1] + w.T @ g[0], g[2] + w @ (g[1] + w.T @ g[0])]
    np.testing.assert_allclose(carried, want, rtol=1e-4, atol=1e-5)


def _rule(scan, kind):
    """A function with a rule that steps the tangents, by themselves or beside the values."""

    @jax.custom_jvp
    def f(a):
        return last(a, jnp.zeros_like(a))[0]

    def last(a, t):
        def step(c, _):
            x = jnp.tanh(c[0] + a)
            return (x, c[1] * (1 - x * x) + t * jnp.cos(x)), x

        return scan(step, (a, t), None, length=3)[0]

    @f.defjvp
    def _(primals, tangents):
        (a,), (t,) = primals, tangents
        if kind == "beside":
            return last(a, t)
        step = lambda c, _: (0.5 * c + jnp.cos(a) * t, None)  # noqa: E731
        return f(a), scan(step, jnp.zeros_like(a), None, length=3)[0]

    return f


DERIVATIVES = {
    "jvp": lambda f, a: jax.jvp(f, (a,), (jnp.cos(a),))[1],
    "grad": lambda f, a: jax.grad(lambda a: _number(f(a)))(a),
    "grad of jit": lambda f, a: jax.grad(lambda a: _number(jax.jit(f)(a)))(a),
    "grad of checkpoint": lambda f, a: jax.grad(jax.checkpoint(lambda a: _number(f(a))))(a),
    "grad of vmap": lambda f, a: jax.grad(lambda a: _number(jax.vmap(f)(a)))(a),
    "linearize": lambda f, a: jax.linearize(f, a)[1](jnp.cos(a)),
    "hvp": lambda f, a: jax.jvp(jax.grad(lambda a: _number(f(a))), (a,), (jnp.cos(a),))[1],
    "grad of grad": lambda f, a: jax.grad(lambda a: _number(jax.grad(lambda a: _number(f(a)))(a)))(
        a
    ),
}


@pytest.mark.parametrize("kind", ["alone", "beside"])
def test_a_scan_in_the_rule_of_a_custom_jvp(kind):
    def derivatives(scan):
        f = _rule(scan, kind)
        return jit_quickly(lambda a: {name: d(f, a) for name, d in DERIVATIVES.items()})(AT[0])

    got, want = derivatives(functools.partial(pb.scan, solver=pb.Sweep())), derivatives(lax.scan)
    for name in DERIVATIVES:
        assert_derivatives_close(got[name], want[name], FLOOR, mode=name)


@pytest.mark.slow
def test_a_transposed_scan_in_shard_map(run_on_devices):
    run_on_devices(ON_A_MESH, 4)


ON_A_MESH = """
import functools, jax, jax.numpy as jnp, numpy as np, parscan_bp as pb
from jax.sharding import PartitionSpec as P

mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
w, h, xs = jnp.cos(jnp.arange(9.0)).reshape(3, 3) / 3, jnp.ones((4, 3)), jnp.ones((8, 4, 3))
steps = lambda h, x: (h @ w + x, 2 * h)
specs = {"in_specs": (P("d"), P(None, "d")), "out_specs": (P("d"), P(None, "d"))}

def turned(scan, how):
    f = functools.partial(scan, steps)
    if how == "shard_map within":
        return jax.linear_transpose(jax.shard_map(f, mesh=mesh, **specs), h, xs)((h, xs))
    back = lambda h, xs: jax.linear_transpose(f, h, xs)((h, xs))
    if how == "shard_map around":
        back = jax.shard_map(back, mesh=mesh, **specs)
    return back(h, xs)

words = ("shard_map within", "shard_map around", "neither")
ours = functools.partial(pb.scan, solver=pb.Sweep())
want = jax.jit(lambda: turned(jax.lax.scan, "neither"))()
got = jax.jit(lambda: [turned(ours, how) for how in words])()
over_mesh = functools.partial(pb.scan, solver=pb.Sharded("d", mesh))
got += [jax.jit(lambda: turned(over_mesh, "neither"))()]
for found in got:
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), found, want)
"""
