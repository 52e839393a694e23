"""What a step compares comes from one evaluation: derivatives lose no branch to rounding."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import parscan_bp as pb
from parscan_bp.conformance import python_loop
from parscan_bp.jaxprs.min_cut import Cut
from parscan_bp.linearise.answered import Answered
from parscan_bp.linearise.body import Body
from tests.extrema.extrema_compared import OPTIMISED, TOLERANCE, apart, tried
from tests.extrema.extrema_steps import MADE, PIECES, SOLVERS, Case

DTYPE = str(jnp.result_type(float))
POINTS = 60


def _descent(scan):
    """Gradient descent with a flag, and the best value so far."""

    def error(w, x):
        return jnp.sum((jnp.tanh(w @ x) - 0.3) ** 2)

    def loss(w, x):
        def step(carry, _):
            x, done, best = carry
            slope = jax.grad(error, 1)(w, x)
            x = lax.cond(done, lambda: x, lambda: x - 0.1 * slope)
            now = error(w, x)
            return (x, now < 1e-3, jnp.minimum(best, now)), now

        start = x, jnp.asarray(False), jnp.asarray(jnp.inf, w.dtype)
        (x, _, best), values = scan(step, start, None, length=10)
        return jnp.sum(jnp.cos(x)) + best + jnp.sum(values**2)

    return loss


def _together(loss, solvers):
    """The gradients by all solvers, in one program that is optimised as users have it."""

    def gradients(*args):
        by = [functools.partial(pb.scan, solver=SOLVERS[name]) for name in solvers]
        return [jax.grad(loss(scan), (0, 1))(*args) for scan in (lax.scan, *by)]

    return jax.jit(gradients, compiler_options=OPTIMISED)


def test_best_of_values_that_are_made_again():
    names = ("Sweep", "Sweep, kept", "Blelloch")
    made = _together(_descent, names)
    for seed in range(POINTS):
        random = np.random.default_rng(seed)
        args = (jnp.asarray(random.normal(size=size), DTYPE) for size in ((3, 3), 3))
        want, *got = made(*args)
        for name, gradient in zip(names, got, strict=True):
            assert apart(gradient, want) < TOLERANCE[DTYPE], (seed, name)


@pytest.mark.parametrize("pieces", [("at least", "maximum"), ("sort", "abs")])
def test_inputs_that_come_again_are_equal_to_their_best(pieces):
    case = Case("product", pieces, "Sweep", DTYPE, 0)
    names = ("Sweep", "Sweep, kept", "Chunked")
    made = _together(case.loss, names)
    for point in range(POINTS // 3):
        want, *got = made(*case.arguments(DTYPE, point))
        for name, gradient in zip(names, got, strict=True):
            assert apart(gradient, want) < TOLERANCE[DTYPE], (point, name)


@pytest.mark.parametrize("index", range(3))
def test_drawn_cases(index):
    (error,) = tried(Case.drawn(7, index))
    assert error is None or error <= TOLERANCE[Case.drawn(7, index).dtype]


@pytest.mark.slow
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("piece", PIECES)
def test_all_pieces_at_many_points(piece, made, solver):
    case = Case(made, (piece, "maximum"), solver, DTYPE, 0)
    errors = [e for e in tried(case, POINTS) if e is not None]
    # A value within rounding of a bound is on either side of it: by chance, so seldom.
    assert np.mean(np.asarray(errors) > TOLERANCE[DTYPE]) <= 1 / POINTS


def test_steps_that_compare_nothing_with_their_carry_have_no_answers():
    def answered(step, *args):
        return Answered.of(Body(jax.make_jaxpr(step)(*args), 0, 1))

    h = jnp.ones(3)
    assert answered(lambda h, x: (jnp.tanh(h + x), h), h, h) is None
    assert answered(lambda h, x: (jax.nn.relu(h * 2 + x), h), h, h) is None
    assert answered(lambda h, x: (jnp.maximum(h * 2 + x, 0), h), h, h) is None
    # Of a maximum of what is read, as it is, every program makes the same.
    assert answered(lambda h, x: (jnp.maximum(h, x), h), h, h) is None
    assert answered(lambda h, x: (jnp.maximum(h, jnp.cos(x)), h), h, h) is not None
    assert answered(lambda h, x: (h + jnp.cos(x), h > jnp.cos(x)), h, h) is None


def test_new_carry_is_read_where_nothing_compares_it_with_what_it_was_made_of():
    def tanhs(step, init):
        def loss(init, xs):
            return sum(map(jnp.sum, pb.scan(step, init, xs, solver=pb.Sweep())[0]))

        return str(jax.make_jaxpr(jax.grad(loss))(init, jnp.ones((5, 3)))).count("tanh")

    def cell(carry, x):
        return (jnp.tanh(carry[0] + x),), None

    def best(carry, x):
        return (new := jnp.tanh(carry[0] + x), jnp.maximum(carry[1], new)), None

    h = jnp.ones(3)
    assert tanhs(cell, (h,)) == 1  # in the forward pass
    assert tanhs(best, (h, h)) == 1


def test_second_derivatives_at_exact_zeros_are_those_of_a_python_loop():
    """`lax.scan` has others there: of the values of `jax.nn.relu` it takes the maximum's slope."""

    def product(scan, w, h):
        def loss(w, h):
            h, ys = scan(lambda h, x: (jax.nn.relu(h @ w + x), h * h), h, xs)
            return jnp.sum(jnp.sin(h)) + jnp.sum(ys**2)

        return jax.jvp(jax.grad(loss, (0, 1)), (w, h), (jnp.cos(w), jnp.cos(h)))[1]

    random = np.random.default_rng(0)  # integers, of which many sums are zero
    w, h, xs = (jnp.asarray(random.integers(-1, 2, s), DTYPE) for s in ((3, 3), 3, (5, 3)))
    scans = python_loop, functools.partial(pb.scan, solver=pb.Sweep())
    want, got = jax.jit(lambda w, h: [product(scan, w, h) for scan in scans])(w, h)
    assert apart(got, want) < TOLERANCE[DTYPE]


def test_cut_keeps_the_answer_where_it_keeps_what_is_compared():
    def program(h, x):
        a = jnp.tanh(h + x)
        u = 2 * a + 1
        best = jnp.max(u)
        return jnp.where(u == best, a, 0), a * a, 3 * a, 1 - a, best

    closed = jax.make_jaxpr(program)(jnp.ones(3), jnp.ones(3))
    cut = Cut.of(closed, 0)
    inputs = [jnp.arange(3.0), jnp.ones(3)]
    kept = cut.make(inputs)
    assert any(v.aval.dtype == bool for v in cut.kept)
    # Another rounding of what is compared changes nothing then.
    off = [k if k.dtype == bool else k * (1 + 1e-6) for k in kept]
    got, want = cut.finish(inputs, off)[0], program(*inputs)[0]
    np.testing.assert_allclose(got, want, rtol=1e-5)
