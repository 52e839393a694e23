"""What a derivative does not reach: arguments without one, outputs that nobody reads.

Where nobody reads a value, its derivative may be NaN: `lax.scan` does not look at it, in any mode.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import parscan_bp as pb
from tests.family import together

SOLVERS = {
    "auto": None,
    "sweep": pb.Sweep(),
    "keeping": pb.Sweep(recompute=False),
    "blelloch": pb.Blelloch(),
}
# Large enough for solver=None to take a solver.
LENGTH, ROWS, HIDDEN = 6, 200, 2
X64 = jnp.zeros(()).dtype == jnp.float64
RTOL, ATOL = (1e-9, 1e-10) if X64 else (1e-3, 1e-4)


def _arguments():
    """(a parameter, another one, the first carry, inputs that begin with zeros)."""
    rng = np.random.default_rng(0)
    xs = rng.normal(size=(LENGTH, ROWS, HIDDEN))
    xs[:2] = 0
    w = rng.normal(size=(HIDDEN, HIDDEN)) / 2
    p = rng.normal(size=HIDDEN)
    return tuple(jnp.asarray(v, float) for v in (w, p, np.zeros((ROWS, HIDDEN)), xs))


def _norm(h):
    """Its derivative at 0 is NaN."""
    return jnp.linalg.norm(h, axis=-1)


def _root(h):
    """Its derivative at 0 is infinite, and NaN where it is multiplied by 0."""
    return jnp.sqrt(jnp.sum(h * h, -1))


def _quotient(h):
    """0 / 0, made a number afterwards: its derivative is not."""
    return jnp.where(h == 0, 1.0, h / h).sum(-1)


# Steps whose unread part has a derivative of NaN. Each returns a loss of what is read.


def unread_carry(scan, w, p, h, xs, metric):
    step = lambda c, x: ((jnp.tanh(c[0] @ w + x * p), metric(c[0])), None)  # noqa: E731
    return jnp.sum(scan(step, (h, jnp.zeros(ROWS, h.dtype)), xs)[0][0] ** 2)


def unread_accumulator(scan, w, p, h, xs, metric):
    """It is read by itself, and by nothing else."""
    step = lambda c, x: ((jnp.tanh(c[0] @ w + x * p), c[1] + metric(c[0])), c[0])  # noqa: E731
    (h, _), ys = scan(step, (h, jnp.zeros(ROWS, h.dtype)), xs)
    return jnp.sum(h**2) + jnp.sum(jnp.sin(ys))


def unread_pair(scan, w, p, h, xs, metric):
    """Two carries read each other, and nobody reads them."""

    def step(c, x):
        h, a, b = c
        return (jnp.tanh(h @ w + x * p), b + metric(h), 0.5 * a), None

    zero = jnp.zeros(ROWS, h.dtype)
    return jnp.sum(scan(step, (h, zero, zero), xs)[0][0] ** 2)


def unread_ys(scan, w, p, h, xs, metric):
    step = lambda h, x: (jnp.tanh(h @ w + x * p), metric(h))  # noqa: E731
    return jnp.sum(scan(step, h, xs)[0] ** 2)


def one_of_two_ys(scan, w, p, h, xs, metric):
    step = lambda h, x: (jnp.tanh(h @ w + x * p), (metric(h), h * x))  # noqa: E731
    return jnp.sum(scan(step, h, xs)[1][1] ** 2)


def unread_final_carry(scan, w, p, h, xs, metric):
    """The carry of the last step alone is not read, the others are."""
    step = lambda h, x: (jnp.tanh(h @ w + x * p), (h, metric(h)))  # noqa: E731
    return jnp.sum(scan(step, h, xs)[1][0] ** 2)


UNREAD = {
    f.__name__: f
    for f in (
        *(unread_carry, unread_accumulator, unread_pair, unread_ys, one_of_two_ys),
        unread_final_carry,
    )
}
METRICS = {"norm": _norm, "root": _root, "quotient": _quotient}


def _tangents(args):
    return tuple(jnp.cos(1 + jnp.arange(a.size, dtype=a.dtype)).reshape(a.shape) for a in args)


def _gradient(loss, args):
    return jax.grad(loss, tuple(range(len(args))))


def _product(loss, args):
    """A number made of the gradient."""
    gradient = _gradient(loss, args)
    return lambda *args: sum(map(jnp.vdot, gradient(*args), _tangents(args)))


# All by all arguments that are given.
MODES = {
    "grad": lambda loss, args: _gradient(loss, args)(*args),
    "hvp": lambda loss, args: jax.jvp(_gradient(loss, args), args, _tangents(args))[1],
    "grad of grad": lambda loss, args: _gradient(_product(loss, args), args)(*args),
    "jvp": lambda loss, args: jax.jvp(loss, args, _tangents(args))[1],
}
every_mode = pytest.mark.parametrize("mode", MODES)
every_solver = pytest.mark.parametrize("solver", SOLVERS)


def by_both(loss, args, mode, solver):
    """A program of the derivatives by a solver and by `lax.scan`, and its arguments."""
    scans = functools.partial(pb.scan, solver=SOLVERS[solver]), lax.scan
    return lambda *args: [MODES[mode](functools.partial(loss, s), args) for s in scans], args


def assert_alike(got, want):
    """As by `lax.scan`, and NaN only where it is there."""
    wrong = {}
    for k, (a, b) in enumerate(zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)):
        size = np.max(np.abs(b), initial=0, where=np.isfinite(b))
        if not np.allclose(a, b, rtol=RTOL, atol=ATOL * (1 + size), equal_nan=True):
            wrong[k] = f"{np.isnan(a).sum()} NaN for {np.isnan(b).sum()}"
    assert not wrong, wrong


@pytest.mark.sampled
@pytest.mark.parametrize("metric", METRICS)
@every_solver
@every_mode
@pytest.mark.parametrize("loss", UNREAD)
def test_nobody_reads_a_value_whose_derivative_is_nan(loss, mode, solver, metric, request):
    def case(loss, mode, solver, metric):
        loss = functools.partial(UNREAD[loss], metric=METRICS[metric])
        return by_both(loss, _arguments(), mode, solver)

    assert_alike(*together(request, case))


def test_lax_scan_does_not_look_at_it():
    w, *others = _arguments()
    gradient = jax.grad(lambda w: unread_carry(lax.scan, w, *others, _norm))(w)
    assert np.isfinite(gradient).all()


def zero_cotangent(scan, w, p, h, xs):
    """A zero that is a number is multiplied by NaN, as `lax.scan` does it."""
    step = lambda h, x: (jnp.tanh(h @ w + x * p), _norm(h))  # noqa: E731
    h, ys = scan(step, h, xs)
    return jnp.sum(h**2) + jnp.sum(0.0 * ys)


# Arguments that are used, but not in a way that has a derivative.


def by_comparison(scan, w, p, h, xs):
    step = lambda h, x: (jnp.where(h > p, jnp.tanh(h @ w), 0.5 * h) + x, h > p)  # noqa: E731
    return jnp.sum(scan(step, h, xs)[0] ** 2)


def by_index(scan, w, p, h, xs):
    table = jnp.linspace(0.5, 1.5, 5, dtype=h.dtype)
    step = lambda h, x: (jnp.tanh(h @ w) * table[jnp.argmax(p)] + x, None)  # noqa: E731
    return jnp.sum(scan(step, h, xs)[0] ** 2)


def by_cast(scan, w, p, h, xs):
    step = lambda h, x: (jnp.tanh(h @ w) * (3 * p).astype(jnp.int32) + x, None)  # noqa: E731
    return jnp.sum(scan(step, h, xs)[0] ** 2)


def by_stopped_gradient(scan, w, p, h, xs):
    step = lambda h, x: (jnp.tanh(h @ w) * lax.stop_gradient(p) + x, None)  # noqa: E731
    return jnp.sum(scan(step, h, xs)[0] ** 2)


def inputs_by_comparison(scan, w, p, h, xs):
    step = lambda h, x: (jnp.where(x > 0, jnp.tanh(h @ w) * p, h + 0.1), h)  # noqa: E731
    h, ys = scan(step, h, xs)
    return jnp.sum(h**2) + jnp.sum(ys)


def carry_by_comparison(scan, w, p, h, xs):
    """The new carry does not depend on the old one, except by a comparison."""
    step = lambda h, x: (jnp.where(h > 0, x @ w, x * p), h)  # noqa: E731
    h, ys = scan(step, h, xs)
    return jnp.sum(h**2) + jnp.sum(ys**3)


def no_use_at_all(scan, w, p, h, xs):
    step = lambda h, x: (jnp.tanh(h @ w + x), p)  # noqa: E731
    return jnp.sum(scan(step, h, xs)[0] ** 2)


USES = {
    f.__name__: f
    for f in (
        *(zero_cotangent, by_comparison, by_index, by_cast, by_stopped_gradient),
        *(inputs_by_comparison, carry_by_comparison, no_use_at_all),
    )
}


@pytest.mark.sampled
@every_solver
@every_mode
@pytest.mark.parametrize("loss", USES)
def test_arguments_without_a_derivative(loss, mode, solver, request):
    case = lambda loss, **how: by_both(USES[loss], _arguments(), **how)  # noqa: E731
    assert_alike(*together(request, case))


def each_alone(scan, w, p, h, xs, *, by):
    """A function of one argument: no other one is differentiated."""
    step = lambda c, x: ((jnp.tanh(c[0] @ w + x * p), c[1] + 1), (c[0] * x, c[1]))  # noqa: E731
    (h, _), (ys, _) = scan(step, (h, 0), xs)
    return jnp.sum(jnp.sin(h)) + jnp.sum(jnp.sin(ys)) * (by != 1)


@pytest.mark.sampled
@every_solver
@every_mode
@pytest.mark.parametrize("by", range(4))
def test_each_argument_alone(by, mode, solver, request):
    def case(by, mode, solver):
        args = _arguments()

        def loss(scan, own):
            return each_alone(scan, *args[:by], own, *args[by + 1 :], by=by)

        return by_both(loss, args[by : by + 1], mode, solver)

    assert_alike(*together(request, case))
