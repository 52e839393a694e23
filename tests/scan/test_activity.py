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
from tests.quickly import jit_quickly

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


def derivatives(loss, args):
    """By every mode, of all arguments that are given, each reduced to itself."""
    args, every = list(args), tuple(range(len(args)))
    tangents = [jnp.cos(1 + jnp.arange(a.size, dtype=a.dtype)).reshape(a.shape) for a in args]
    gradient = jax.grad(loss, every)

    def product(*args):
        pairs = zip(gradient(*args), tangents, strict=True)
        return sum(jnp.vdot(g, t) for g, t in pairs)

    return {
        "grad": gradient(*args),
        "jvp": jax.jvp(loss, args, tangents)[1],
        "hvp": jax.jvp(gradient, args, tangents)[1],
        "grad of grad": jax.grad(product, every)(*args),
    }


def assert_alike(loss, args, solver):
    """Every derivative as by `lax.scan`, and NaN only where it is there."""
    got, want = (
        jit_quickly(lambda args: derivatives(functools.partial(loss, scan), args))(args)
        for scan in (functools.partial(pb.scan, solver=SOLVERS[solver]), lax.scan)
    )
    wrong = {}
    for mode, values in want.items():
        pairs = zip(jax.tree.leaves(got[mode]), jax.tree.leaves(values), strict=True)
        for k, (a, b) in enumerate(pairs):
            if not np.allclose(a, b, rtol=RTOL, atol=ATOL * (1 + np.abs(b).max()), equal_nan=True):
                wrong[mode, k] = f"{np.isnan(a).sum()} NaN for {np.isnan(b).sum()}"
    assert not wrong, wrong


@pytest.mark.sampled
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("loss", UNREAD)
def test_nobody_reads_a_value_whose_derivative_is_nan(loss, metric, solver):
    run = functools.partial(UNREAD[loss], metric=METRICS[metric])
    assert np.isfinite(jax.grad(lambda w: run(lax.scan, w, *_arguments()[1:]))(_w())).all()
    assert_alike(run, _arguments(), solver)


def _w():
    return _arguments()[0]


def test_nobody_reads_it_eagerly():
    """As found: no compilation around, the solver being chosen."""
    for loss in UNREAD.values():
        gradient = jax.grad(lambda w: loss(pb.scan, w, *_arguments()[1:], _norm))(_w())
        assert np.isfinite(gradient).all(), loss.__name__


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
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("loss", USES)
def test_arguments_without_a_derivative(loss, solver):
    assert_alike(USES[loss], _arguments(), solver)


def each_alone(scan, w, p, h, xs, *, by):
    """A function of one argument: no other one is differentiated."""
    step = lambda c, x: ((jnp.tanh(c[0] @ w + x * p), c[1] + 1), (c[0] * x, c[1]))  # noqa: E731
    (h, _), (ys, _) = scan(step, (h, 0), xs)
    return jnp.sum(jnp.sin(h)) + jnp.sum(jnp.sin(ys)) * (by != 1)


@pytest.mark.sampled
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("by", range(4))
def test_each_argument_alone(by, solver):
    args = _arguments()

    def loss(scan, own):
        return each_alone(scan, *args[:by], own, *args[by + 1 :], by=by)

    assert_alike(loss, args[by : by + 1], solver)
