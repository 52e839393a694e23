"""A `custom_jvp` whose rule returns its value otherwise than by a call of its function.

JAX differentiates the rule: from the second derivative on the trajectory moves as what the rule
computes for the value moves, a comparison not at all. The reference is the loop in Python.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parscan_bp as pb
from parscan_bp.conformance import python_loop
from parscan_bp.jaxprs.differentiated import values_after_derivative
from tests.quickly import jit_quickly

SOLVERS = {"sweep": pb.Sweep(), "keeping": pb.Sweep(recompute=False)}
SOLVERS["blelloch"] = pb.Blelloch()
XS = np.linspace(-1.0, 1.5, 6).reshape(3, 2)


def _function(values, slope, primal=None):
    """Of these values and this slope, by a rule that returns ``primal``, or the values."""
    call = jax.custom_jvp(values)
    primal = values if primal is None else primal
    call.defjvp(lambda p, t: (primal(p[0]), slope(p[0]) * t[0]))
    return call


def _above(v):
    return (v > 0).astype(v.dtype)


def _surrogate(v):
    return 1 / (1 + jnp.abs(v)) ** 2


def _slope_alone(v):
    return v - jax.lax.stop_gradient(v)


spike = _function(_above, _surrogate)
straight = _function(lambda v: jnp.round(v), jnp.ones_like)
itself = _function(_above, _surrogate, lambda v: itself(v))
smooth = _function(_above, _surrogate, lambda v: _above(v) + _slope_alone(jax.nn.sigmoid(v)))
wide = _function(lambda v: spike(v) * jnp.sin(v), jnp.cos, lambda v: spike(v) * jnp.sin(v))
other = _function(_above, _surrogate, spike)
rectified = _function(lambda v: jnp.maximum(v, 0), _above, lambda v: rectified(v))
coupled = _function(jnp.sin, _surrogate, lambda v: jnp.sin(v) + _slope_alone(v * v[::-1]))


def _in_cond(v):
    return jax.lax.cond(v[0] > 0, jax.jit(spike), jnp.tanh, v)


def _in_loop(scan):
    def f(v):
        one = lambda c, x: (spike(c * x - 0.1) + 0.5 * c * x, spike(c))  # noqa: E731
        carry, ys = scan(one, v, jnp.stack([v, 1 - v]))
        return carry + jnp.sum(ys, 0) * v

    return f


INNER = functools.partial(pb.scan, solver=pb.Sweep())


def _of_best(c, w, x):
    best = rectified(c[0] - jnp.cos(w * x))
    return (best + spike(c[0] - jnp.sin(w * x)) * c[1], 0.9 * c[1] + w * x), best * c[1]


def _of(f):
    def step(c, w, x):
        u, s = c
        new = 0.9 * u * (1 - 0.5 * s) + w * x + 0.3 * s * u * f(w * x)
        return (new, f(u - 0.1)), f(new - 0.2) * new + f(w + x)

    return step


STEPS = {
    "spike": _of(spike),
    "straight-through": _of(straight),
    "calls itself": _of(itself),
    "smooth from then on": _of(smooth),
    "nested": _of(wide),
    "returns another": _of(other),
    "coupled from then on": _of(coupled),
    "relu": _of(jax.nn.relu),
    "two": _of(lambda v: spike(v) * jax.nn.relu(v + 0.3) + straight(3 * v) * itself(v)),
    "in cond": _of(_in_cond),
    "in a loop": _of(_in_loop(jax.lax.scan)),
    "in a scan of ours": _of(_in_loop(INNER)),
    "best": _of_best,
}


def _loss(step, scan, w):
    zero = jnp.full(2, 0.2, w.dtype)
    carry, ys = scan(lambda c, x: step(c, w, x), (zero, zero), jnp.asarray(XS, w.dtype))
    return jnp.sum(ys**2) + jnp.sum(carry[0] ** 3)


def _push(loss, t):
    return lambda w: jax.jvp(loss, (w,), (t,))[1]


ORDERS = {
    "hvp": lambda loss, w, t: jax.jvp(jax.grad(loss), (w,), (t,)),
    "reverse over forward": lambda loss, w, t: jax.grad(_push(loss, t))(w),
    "grad of grad": lambda loss, w, t: jax.grad(lambda w: jnp.vdot(jax.grad(loss)(w), t))(w),
    "forward over forward": lambda loss, w, t: _push(_push(loss, t), t)(w),
}


def _by(orders):
    def of(step, scan, w, t):
        return [ORDERS[order](functools.partial(_loss, step, scan), w, t) for order in orders]

    return of


def _agree(step, solver, of):
    with jax.enable_x64(True):
        w, t = jnp.array([0.7, -1.2]), jnp.array([0.3, 1.0])
        scans = functools.partial(pb.scan, solver=solver), python_loop
        got, want = jit_quickly(lambda w, t: [of(step, scan, w, t) for scan in scans])(w, t)
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-9), got, want)


def _slow(name):
    return pytest.param(name, marks=pytest.mark.slow)


def _in_turn(values, number):
    return list(values)[number % len(values)]


@pytest.mark.parametrize("number", range(len(STEPS)), ids=list(STEPS))
def test_a_second_derivative_is_that_of_the_rule(number):
    solver, order = (_in_turn(of, number) for of in (SOLVERS, ORDERS))
    _agree(_in_turn(STEPS.values(), number), SOLVERS[solver], _by([order]))


@pytest.mark.slow
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("name", STEPS)
def test_second_derivatives_are_those_of_the_rule(name, solver):
    _agree(STEPS[name], SOLVERS[solver], _by(ORDERS))


@pytest.mark.parametrize("name", ["spike", *map(_slow, ("returns another", "smooth from then on"))])
def test_third_derivatives(name):
    def third(step, scan, w, t):
        loss = functools.partial(_loss, step, scan)
        push = lambda f: lambda w: jax.jvp(f, (w,), (t,))[1]  # noqa: E731
        return jax.grad(push(push(loss)))(w), push(push(jax.grad(loss)))(w)

    _agree(STEPS[name], pb.Sweep(), third)


@pytest.mark.parametrize("solver", SOLVERS)
def test_what_moves_later_has_its_slope_by_the_rule_still(solver):
    def mixed(step, scan, w, t):
        def loss(w, v):
            one = lambda c, x: (0.9 * c * spike(v * x) + w * x, spike(c - 0.1) * c)  # noqa: E731
            carry, ys = scan(one, jnp.full(2, 0.2), jnp.asarray(XS))
            return jnp.sum(ys**2) + jnp.sum(carry**3)

        return jax.grad(lambda v: jnp.vdot(jax.grad(loss)(w, v), t))(w - t)

    _agree(None, SOLVERS[solver], mixed)


LEFT = {
    "relu": jax.nn.relu,
    "its own": itself,
    "jit": jax.jit(jax.nn.relu),
    "logaddexp": lambda v: jnp.logaddexp(v, 1.0),
    "cond": lambda v: jax.lax.cond(v[0] > 0, jax.nn.relu, jnp.sin, v),
    "while": lambda v: jax.lax.while_loop(lambda c: c[0] < 2, lambda c: c + jax.nn.relu(c), v),
    "scan": lambda v: INNER(lambda c, x: (jax.nn.relu(c * x), c), v, jnp.ones((2, 2))),
}


@pytest.mark.parametrize("name", LEFT)
def test_a_step_whose_rules_call_their_functions_stays_as_it_is(name):
    step = jax.make_jaxpr(LEFT[name])(jnp.ones(2))
    assert values_after_derivative(step, [0]) is step


def test_of_a_solver_that_is_chosen():
    rows = jnp.asarray(np.random.default_rng(0).normal(size=(200, 16, 20)), jnp.float32)
    w, t = (a @ a[:, ::-1].T / 40 for a in (rows[0].T, rows[1].T))
    zero = jnp.zeros((16, 20))

    def step(w):
        def one(c, x):
            new = 0.9 * jnp.tanh(c @ w) * (1 - spike(c - 0.5)) + x
            return new, spike(new)

        return one

    def hvp(scan):
        loss = lambda w: jnp.mean(scan(step(w), zero, rows)[1] ** 2)  # noqa: E731
        return lambda w: jax.jvp(jax.grad(loss), (w,), (t,))[1]

    assert pb.explain(step(w), zero, rows).choice == "Sweep()"
    got, want = jit_quickly(lambda w: [hvp(scan)(w) for scan in (pb.scan, jax.lax.scan)])(w)
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-5)
