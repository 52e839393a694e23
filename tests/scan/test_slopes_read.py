"""A rule's slope may read what its function has no derivative by: ``k`` in ``t_out = k * t_x``.

The first derivative by k is zero, and those of the others move with k. The reference is the loop in
Python.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parscan_bp as pb
from parscan_bp.conformance import python_loop
from parscan_bp.jaxprs.differentiated import slopes_read
from tests.quickly import jit_quickly

XS = np.linspace(-0.6, 1.5, 6).reshape(3, 2)


def _with_rule(values, rule):
    call = jax.custom_jvp(values)
    call.defjvp(rule)
    return call


def _above(v, k):
    return (v > 0).astype(v.dtype)


spike = _with_rule(_above, lambda p, t: (spike(*p), p[1] * t[0]))
plain = _with_rule(_above, lambda p, t: (_above(*p), jnp.cos(p[1]) * t[0]))
nested = _with_rule(_above, lambda p, t: (nested(*p), spike(p[0], p[1]) * p[1] ** 2 * t[0]))


def _step(f, c, x, k):
    return 0.9 * c * (1 - 0.5 * f(c, k)) + x, c * f(x + c, k)


# What k is of a scan: ``(step, w, k, first carry, scan) -> (carry, ys)``.


def const(step, w, k, z, scan):
    return scan(lambda c, x: step(c, w * x, k), z, jnp.asarray(XS))


def inputs(step, w, k, z, scan):
    ks = k * (1 + 0.1 * jnp.asarray(XS))
    return scan(lambda c, x: step(c, w * x[0], x[1]), z, (jnp.asarray(XS), ks))


def carried(step, w, k, z, scan):
    def one(c, x):
        new, y = step(c[0], w * x, c[1])
        return (new, c[1]), y

    (c, _), ys = scan(one, (z, k), jnp.asarray(XS))
    return c, ys


def carried_on(step, w, k, z, scan):
    def one(c, x):
        new, y = step(c[0], w * x, c[1])
        return (new, 0.9 * c[1] + 0.1 * jnp.sin(w * x)), y

    (c, _), ys = scan(one, (z, k), jnp.asarray(XS))
    return c, ys


@functools.cache
def _call(given, f):
    return functools.partial(given, functools.partial(_step, f))


SOLVERS = {
    "sweep": {"solver": pb.Sweep()},
    "keeping": {"solver": pb.Sweep(recompute=False)},
    "blelloch": {"solver": pb.Blelloch()},
    "newton": {"solver": pb.Sweep(), "forward": pb.Newton()},
}


def _push(f, n, t):
    return lambda *a: jax.jvp(lambda v: f(*a[:n], v, *a[n + 1 :]), (a[n],), (t[n],))[1]


def _pull(f, n, t):
    return lambda *a: jnp.vdot(jax.grad(f, n)(*a), t[n])


def _seconds(loss, args, t):
    """By w and then k in all modes, and by all together."""
    modes = {"forward": _push, "reverse": _pull}
    found = {}
    for (a, f), (b, g) in itertools.product(modes.items(), repeat=2):
        found[f"{b} over {a}"] = g(f(loss, 0, t), 1, t)(*args)
    return found | _product(loss, args, t)


def _product(loss, args, t):
    """By all together."""
    return {"product": jax.jvp(jax.grad(loss, (0, 1, 2)), args, t)[1]}


def _derivatives(call, of, scan):
    """``of(loss, args, tangents)`` for ``call(*args, scan)``."""
    args = tuple(map(jnp.array, ([0.7, -1.2], [0.4, 0.8], [0.2, 0.3])))
    t = tuple(map(jnp.array, ([0.3, 1.0], [1.0, -0.6], [0.5, 0.8])))

    def loss(w, k, z):
        # The first carry moves always, as that of the later steps does.
        c, ys = call(w, k, z + 0 * (w + k), scan)
        return jnp.sum(ys**2) * jnp.mean(k) + jnp.sum(jnp.sin(c))

    return jit_quickly(functools.partial(of, loss))(args, t)


in_python = functools.cache(functools.partial(_derivatives, scan=python_loop))


def _agree(call, of, how):
    """A scan of ours has the derivatives of the loop in Python."""
    with jax.enable_x64(True):
        got, want = _derivatives(call, of, functools.partial(pb.scan, **how)), in_python(call, of)
        for name in want:
            same = functools.partial(np.testing.assert_allclose, rtol=1e-8, atol=1e-9)
            jax.tree.map(functools.partial(same, err_msg=name), got[name], want[name])


def _cases(test):
    test = pytest.mark.parametrize("f", [spike, plain, nested], ids=["spike", "plain", "nested"])(
        test
    )
    test = pytest.mark.parametrize("given", [const, inputs, carried, carried_on])(test)
    return pytest.mark.parametrize("solver", SOLVERS)(test)


@pytest.mark.sampled
@_cases
def test_products_with_the_hessian_by_what_only_a_slope_reads(f, given, solver):
    _agree(_call(given, f), _product, SOLVERS[solver])


@pytest.mark.slow
@_cases
def test_second_derivatives_by_what_only_a_slope_reads(f, given, solver):
    _agree(_call(given, f), _seconds, SOLVERS[solver])


def _one(f):
    f.defjvp(lambda p, t: (_above(p[0], 0), t[0] / (1 + p[0] ** 2)))
    return f


slope_one = _one(jax.custom_jvp(lambda v: _above(v, 0)))


@pytest.mark.parametrize("recompute", [True, False])
def test_third_derivatives_by_what_moves_later(recompute):
    """The rule is not run of the first derivative, which is by w, and is from the second on."""

    def call(w, k, z, scan):
        return scan(lambda c, x: (0.9 * c * slope_one(k * x) + w * x, c), z, jnp.asarray(XS))

    def thirds(loss, args, t):
        found = {}
        for name in ("fff", "rff", "rrr", "frf"):
            f = loss
            for mode, n in zip(name, (0, 1, 1), strict=True):
                f = (_push if mode == "f" else _pull)(f, n, t)
            found[name] = f(*args)
        return found

    _agree(call, thirds, {"solver": pb.Sweep(recompute=recompute)})


def test_a_rule_is_run_of_what_it_has_no_derivative_by():
    """From the derivative by k on its value is the plain comparison, of slope zero."""

    def call(w, k, z, scan):
        def one(c, x):
            at = plain(w * x, k)
            return 0.9 * c + at, c * at

        return scan(one, z, jnp.asarray(XS))

    def by_k(loss, args, t):
        pairs = itertools.product((_push, _pull), repeat=2)
        return {f"{k}": g(f(loss, 1, t), 0, t)(*args) for k, (f, g) in enumerate(pairs)}

    _agree(call, by_k, SOLVERS["sweep"])


def test_what_slopes_read():
    def step(k, c, x):
        return 0.5 * c * spike(x, k) + x, jnp.sin(c)

    step = jax.make_jaxpr(step)(1.0, 1.0, 1.0)
    assert slopes_read(step, [1, 2], [0]) == (True, True, True)
    assert slopes_read(step, [1], [0]) == (False, False, True)
    assert slopes_read(step, [1, 2], [1]) == (False, True, False)
