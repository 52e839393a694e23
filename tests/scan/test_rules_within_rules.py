"""Steps with a `custom_jvp` whose rule applies functions with a rule to the tangents.

So are linear functions with a name written: the rule applies the function itself.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import parscan_bp as pb
from parscan_bp.conformance import python_loop
from tests.family import assert_derivatives_close
from tests.quickly import jit_quickly

SOLVERS = {"sweep": pb.Sweep(), "keeping": pb.Sweep(recompute=False), "blelloch": pb.Blelloch()}
SOLVERS |= {"none": None, "jacobi": pb.Jacobi()}


@jax.custom_jvp
def twice(x):
    return 2 * x


@jax.custom_jvp
def onward(x):
    return 1.5 * x


@jax.custom_jvp
def back(x):
    return 1.5 * x


@jax.custom_jvp
def sine(x):
    return jnp.sin(x)


@jax.custom_jvp
def cosine(x):
    return jnp.cos(x)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def scaled(scale, x):
    return scale * x


twice.defjvp(lambda p, t: (twice(*p), twice(*t)))
onward.defjvp(lambda p, t: (onward(*p), back(*t)))
back.defjvp(lambda p, t: (back(*p), onward(*t)))
sine.defjvp(lambda p, t: (sine(*p), twice(cosine(*p) * t[0]) / 2))
cosine.defjvp(lambda p, t: (cosine(*p), -twice(sine(*p) * t[0]) / 2))
scaled.defjvp(lambda scale, p, t: (scaled(scale, *p), scaled(scale, *t)))

FUNCTIONS = {
    "itself": twice,
    "one another": lambda x: onward(back(x)),
    "each other's derivative": lambda x: sine(x) + cosine(x),
    "an argument without derivative": lambda x: scaled(3, x),
    "in a loop": lambda x: jax.lax.fori_loop(0, 2, lambda _, x: twice(x) / 3, x),
    "in a branch": lambda x: jax.lax.cond(x[0, 0] > 9, jnp.tanh, twice, x),
    "under vmap": jax.vmap(twice),
}

RNG = np.random.default_rng(0)
W, DW = (jnp.asarray(RNG.normal(size=(3, 3)) / 3) for _ in range(2))
XS = jnp.asarray(RNG.normal(size=(4, 2, 3)))
FLOOR = 1e-10 if jax.config.jax_enable_x64 else 5e-5


def _all(x):
    return sum(f(x) for f in FUNCTIONS.values()) / len(FUNCTIONS)


def _derivatives(scan, f):
    """Of steps with a function: by forward mode, reverse mode and both."""

    def loss(w):
        step = lambda h, x: (jnp.tanh(f(h) @ w + x), h)  # noqa: E731
        return jnp.sum(jnp.cos(scan(step, jnp.ones((2, 3), w.dtype), XS)[1]))

    def derivatives(w):
        return jax.jvp(loss, (w,), (DW,))[1], *jax.jvp(jax.grad(loss), (w,), (DW,))

    return jit_quickly(derivatives)(W)


@pytest.mark.sampled(of=["sweep"])
@pytest.mark.parametrize("solver", SOLVERS)
def test_derivatives_of_steps_whose_rules_apply_themselves(solver):
    scan = functools.partial(pb.scan, solver=SOLVERS[solver])
    assert_derivatives_close(_derivatives(scan, _all), _derivatives(lax.scan, _all), FLOOR)


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_of_each_function(name):
    f, scan = FUNCTIONS[name], functools.partial(pb.scan, solver=pb.Sweep())
    assert_derivatives_close(_derivatives(scan, f), _derivatives(python_loop, f), FLOOR)


METHODS = {
    "chunks": "chunks",
    "newton": pb.forward.Newton(),
    "fixed point": pb.forward.FixedPoint(),
}


@pytest.mark.slow
@pytest.mark.parametrize("forward", METHODS)
def test_values_by_a_method(forward):
    step = lambda h, x: (jnp.tanh(twice(h) / 9 + x), h)  # noqa: E731
    last = lambda scan, xs: scan(step, jnp.zeros((2, 3), XS.dtype), xs)[0]  # noqa: E731
    method = functools.partial(pb.scan, solver=pb.Sweep(), forward=METHODS[forward])
    got, want = (
        jit_quickly(lambda xs, s=s: (last(s, xs), jax.grad(lambda x: jnp.sum(last(s, x)))(xs)))(XS)
        for s in (method, lax.scan)
    )
    assert_derivatives_close(got, want, 1e-3)


def test_a_rule_that_closes_over_traced_values():
    """It is left to `jax.lax.scan`, which takes it as it is, or refused by name."""
    h, xs = jnp.ones(3), jnp.ones((4, 3)) * 0.3

    def loss(scan, w, h):
        @jax.custom_jvp
        def turned(d):
            return jnp.sin(d @ w)

        turned.defjvp(lambda p, t: (turned(p[0]), jnp.cos(p[0] @ w) * (t[0] @ w)))
        return jnp.sum(scan(lambda c, x: (jnp.tanh(turned(c) + x), c), h, xs)[0] ** 2)

    def gradient(solver, by=1):
        scan = functools.partial(pb.scan, solver=solver)
        return jax.jit(jax.grad(functools.partial(loss, scan), by))(jnp.eye(3) / 2, h)

    wanted = jax.jit(jax.grad(functools.partial(loss, jax.lax.scan), 1))(jnp.eye(3) / 2, h)
    np.testing.assert_allclose(gradient(pb.Sweep(otherwise="lax")), wanted, rtol=1e-6)
    with pytest.raises(NotImplementedError, match="custom_jvp_call: has a rule that closes over"):
        gradient(pb.Sweep())
    with pytest.raises(jax.errors.UnexpectedTracerError):  # as of a Python loop
        gradient(pb.Sweep(otherwise="lax"), by=0)
