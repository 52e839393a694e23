"""Interval arithmetic: it encloses every value, whatever the arguments in their intervals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parscan_bp as pb
from parscan_bp.forward.intervals import RULES, Interval, around, evaluate_interval

W = np.asarray([[0.5, -1.5], [2.0, 0.25]], np.float32)

# By primitive, a function of a positive and a free vector of two numbers.
PROGRAMS = {
    "add": lambda p, x: p + x,
    "add_any": lambda p, x: jax.grad(lambda p: jnp.sum(p * x + p * p))(p),
    "sub": lambda p, x: p - x,
    "neg": lambda p, x: -x,
    "mul": lambda p, x: p * x,
    "div": lambda p, x: x / p,
    "integer_pow": lambda p, x: x**4 + x**3 + p**-3,
    "square": lambda p, x: jnp.square(x),
    "tanh": lambda p, x: jnp.tanh(x),
    "logistic": lambda p, x: jax.nn.sigmoid(x),
    "erf": lambda p, x: jax.scipy.special.erf(x),
    "exp": lambda p, x: jnp.exp(x),
    "expm1": lambda p, x: jnp.expm1(x),
    "log": lambda p, x: jnp.log(p),
    "log1p": lambda p, x: jnp.log1p(p),
    "sqrt": lambda p, x: jnp.sqrt(p),
    "sin": lambda p, x: jnp.sin(x),
    "cos": lambda p, x: jnp.cos(3 * x),
    "dot_general": lambda p, x: W @ x + jnp.outer(p, x) @ p,
    "reduce_sum": lambda p, x: jnp.sum(x * p),
    "select_n": lambda p, x: jnp.where(W[0] > 0, x, p),
    "convert_element_type": lambda p, x: x.astype(jnp.float64) * p,
    "moves": lambda p, x: jnp.concatenate([x[::-1], jnp.split(p, 2)[1]]).reshape(3, 1).T,
    "calls": lambda p, x: jax.jit(jax.nn.softplus)(0.0 * W[0]) * jax.jit(jnp.tanh)(x),
}
ONE_MINUS_SQUARE = "one_minus_square"  # a primitive of newer versions of JAX, in tanh's derivative


def test_the_table_is_complete():
    assert set(RULES) - {ONE_MINUS_SQUARE} <= set(PROGRAMS)


@pytest.mark.parametrize("name", PROGRAMS)
@jax.enable_x64(True)
def test_it_encloses(name):
    f, rng = PROGRAMS[name], np.random.default_rng(0)
    program = jax.make_jaxpr(f)(jnp.ones(2, jnp.float32), jnp.ones(2, jnp.float32))
    for radius in (1e-6, 0.1, 0.4):
        p = jnp.asarray(rng.uniform(0.5, 2, 2), jnp.float32)
        x = jnp.asarray(rng.normal(size=2), jnp.float32)
        (found,) = evaluate_interval(program, [around(p, radius), around(x, radius)])
        low, high = np.asarray(found.low, np.float64), np.asarray(found.high, np.float64)
        for _ in range(50):
            shift = rng.uniform(-radius, radius, (2, 2))
            shift = np.where(rng.random((2, 2)) < 0.3, np.sign(shift) * radius, shift)
            wide = (np.asarray(v, np.float64) + d for v, d in zip((p, x), shift, strict=True))
            value = np.asarray(f(*wide), np.float64)
            assert (low <= value).all() and (value <= high).all()
        if radius < 1e-3:
            assert (high - low).max() < 1e-3 * (1 + abs(high).max())


def test_the_second_derivative_of_tanh():
    """The largest |tanh''| is 4 / (3 sqrt 3), at 0.658."""
    second = jax.make_jaxpr(jax.grad(jax.grad(jnp.tanh)))(0.0)
    most = 4 / 3**1.5
    for center, radius in ((0.658, 1e-4), (0.5, 0.2), (-0.6, 0.1)):
        (found,) = evaluate_interval(second, [around(jnp.float32(center), radius)])
        assert max(abs(float(found.low)), abs(float(found.high))) >= most * (1 - 1e-6)
    (point,) = evaluate_interval(second, [around(jnp.float32(0.658), 1e-6)])
    assert abs(float(point.low) + most) < 1e-4


def test_across_zero():
    program = jax.make_jaxpr(lambda x: (x**2, 1 / x))(1.0)
    square, inverse = evaluate_interval(program, [Interval(jnp.float32(-1), jnp.float32(2))])
    assert square.low <= 0 and -1e-5 < square.low and 4 <= square.high < 4.001
    assert inverse.low == -jnp.inf and inverse.high == jnp.inf


@pytest.mark.parametrize(
    ("f", "name"),
    [
        (jax.nn.relu, "max"),
        (jnp.abs, "abs"),
        (lambda x: jnp.where(x > 0, x, 0.0), "gt"),
        (lambda x: x.astype(int) * 1.0, "convert_element_type"),
        (lambda x: x.astype(jnp.bfloat16), "convert_element_type"),
        (jnp.cumsum, "cumsum"),
    ],
    ids=["max", "abs", "gt", "integers", "narrow", "cumsum"],
)
def test_what_has_no_rule_is_refused_by_name(f, name):
    program = jax.make_jaxpr(f)(jnp.ones(2))
    with pytest.raises(NotImplementedError, match=name):
        evaluate_interval(program, [around(jnp.ones(2), 0.1)])


def test_what_depends_on_no_interval_is_evaluated_as_it_stands():
    program = jax.make_jaxpr(lambda x, u: x * jnp.abs(u))(1.0, 1.0)
    (found,) = evaluate_interval(program, [around(jnp.float32(1), 0.5), jnp.float32(-2)])
    assert found.low <= 1 and found.high >= 3 and found.high < 3.001


def test_what_no_result_depends_on_may_have_no_rule():
    """An output of a step beside its carry, such as where it is largest."""

    def step(c, x):
        h = jnp.tanh(0.5 * c + x)
        return h, (jnp.argmax(h), jnp.max(h))

    xs = jnp.sin(jnp.arange(27.0)).reshape(9, 3)
    how = {"forward": pb.FixedPoint(certify="bound"), "report": True}
    *_, report = pb.scan(step, jnp.zeros(3), xs, **how)
    assert report.forward.status == pb.Status.OK and not report.fell_back
