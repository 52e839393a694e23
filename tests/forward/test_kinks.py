"""Steps with kinks: what an error makes of the other side, of all kinks and at every depth."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import parscan_bp as pb
from parscan_bp.forward import Recurrence
from parscan_bp.forward.ball import Ball
from parscan_bp.forward.balls import RULES, evaluate_balls
from parscan_bp.forward.kinks import kinks_of, unknown_kinks
from tests.family import together
from tests.forward.outcomes import counts_of, outcomes
from tests.forward.piecewise import PIECEWISE
from tests.forward.systems import FAMILIES, drawn
from tests.quickly import jit_quickly

SLOW = pytest.mark.slow


def _told(step, first, xs, forward):
    """What is told of the trajectory of a method, how far it is from the true one, and whether
    what is returned is what `jax.lax.scan` makes of it."""
    both = lambda c, x: (h := step(c, x), h)  # noqa: E731
    without_fallback = dataclasses.replace(forward, fallback=False)

    @jit_quickly
    def made(first, xs):
        dropped = pb.scan(both, first, xs, report=True, forward=without_fallback)
        return dropped[1], dropped[2].forward, lax.scan(both, first, xs)[1]

    got, told, want = made(first, xs)
    return told, np.abs(np.asarray(got) - np.asarray(want)).max()


def _is_refused(told, off):
    assert off > 0.1  # else there is nothing to tell
    assert told.converged and told.status == pb.Status.UNCERTIFIED
    return True


def test_a_chunk_that_is_kept_on_the_wrong_side_of_a_kink():
    """After 16 steps the second chunk is within rounding of what it was, on the other side of 0."""
    half = 96
    up, down, kick = np.full(half, 1.5), np.full(half, 0.1), np.zeros(half)
    up[:16] = down[:16] = 0.42
    up[-1] = down[-1] = 0.0
    kick[-1] = 0.55
    xs = jnp.asarray(np.tile(np.stack([up, down, kick], 1), (2, 1)), jnp.float32)

    def step(h, x):
        return jnp.minimum(jnp.where(h > 0, x[0], x[1]) * h + x[2], 1.0)

    assert _is_refused(*_told(step, jnp.float32(-0.5), xs, forward=pb.Chunks(2)))


AT_REST = {
    "relu": lambda c, u: jnp.minimum(jax.nn.relu(1.5 * c + u), 1.0),
    "abs": lambda c, u: jnp.minimum(jnp.abs(1.5 * c) + u, 1.0),
    "leaky": lambda c, u: jnp.tanh(1.5 * jnp.where(c > 0, c, 0.1 * c) + u),
    "max": lambda c, u: jnp.tanh(jnp.maximum(1.5 * c, 0.1 * c) + u),
    "clip": lambda c, u: jnp.tanh(1.5 * jnp.clip(c, 0.0, 1.0) + u),
    "sort": lambda c, u: jnp.tanh(jnp.sort(jnp.concatenate([1.5 * c, 0 * c]))[1:] + u),
    "cond": lambda c, u: jnp.tanh(lax.cond(c[0] > 0, lambda c: 1.5 * c, lambda c: 0.1 * c, c) + u),
}
KICK = jnp.zeros((64, 1), jnp.float32).at[0].set(5e-7)
METHODS = {
    "fixed point": pb.FixedPoint(),
    "newton": pb.Newton(),
    "chunks": pb.Chunks(4),
    "frozen": pb.FrozenActivations(),
}


@pytest.mark.parametrize(
    ("kink", "method"),
    [
        pytest.param(kink, method, marks=() if (kink, method) in QUICK else SLOW)
        for QUICK in [{("relu", "fixed point"), ("leaky", "fixed point"), ("relu", "frozen")}]
        for kink in AT_REST
        for method in METHODS
        if method != "frozen" or kink in ("relu",)
        if method != "chunks"  # which makes the true one
    ],
)
def test_a_trajectory_that_rests_on_a_kink(kink, method):
    """Its slope there says that a first input of 5e-7 is forgotten; the true one grows to 1."""
    told, off = _told(AT_REST[kink], jnp.zeros(1, jnp.float32), KICK, forward=METHODS[method])
    assert _is_refused(told, off)


@jax.custom_jvp
def _flat(c):
    return 1.5 * c


_flat.defjvp(lambda primals, tangents: (_flat(*primals), 0.1 * tangents[0]))


def _stopped(c):
    return 1.5 * lax.stop_gradient(c)


OTHER_SLOPES = {
    "stopped": lambda c, u: _stopped(c),
    "stopped in a cond": lambda c, u: lax.cond(u[0] > 1, lambda c: c, _stopped, c),
    "stopped in a scan": lambda c, u: lax.scan(
        lambda a, _: (1.25 * lax.stop_gradient(a), None), c, None, length=2
    )[0],
    "stopped in a loop": lambda c, u: lax.fori_loop(
        0, 2, lambda _, a: 1.25 * lax.stop_gradient(a), c
    ),
    "in a checkpoint": lambda c, u: jax.checkpoint(jax.jit(_stopped))(c),
    "custom_jvp in a cond": lambda c, u: lax.cond(u[0] > 1, lambda c: c, _flat, c),
    "in a scan of ours": lambda c, u: pb.scan(
        lambda a, _: (1.25 * lax.stop_gradient(a), None), c, None, length=2
    )[0],
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n.endswith(("a cond", "scan")) else SLOW) for n in OTHER_SLOPES],
)
def test_slopes_that_are_not_those_of_the_values(name):
    """At every depth: the error grows by the slopes that values have."""
    step = lambda c, u: jnp.tanh(OTHER_SLOPES[name](c, u) + u)  # noqa: E731
    first = jnp.zeros(1, jnp.float32)
    assert _is_refused(*_told(step, first, KICK, forward=pb.FixedPoint()))


# --- what is not refused --------------------------------------------------------------------------


def test_kinks_that_are_passed_now_and_then_are_no_reason_to_refuse():
    """A relu cell of 16 units: some of 16,000 pre-activations are within rounding of 0."""
    rng = np.random.default_rng(0)
    w = jnp.asarray(0.9 / 4 * rng.normal(size=(16, 16)), jnp.float32)
    xs = jnp.asarray(rng.normal(size=(1024, 16)), jnp.float32)
    step = lambda h, x: jax.nn.relu(h @ w + x)  # noqa: E731
    told, off = _told(step, jnp.zeros(16, jnp.float32), xs, forward=pb.Chunks(8, rounds=7))
    assert told.status == pb.Status.OK and told.error + told.floor < told.tolerance
    assert off <= told.tolerance


def test_nothing_at_all_is_exact():
    """Zero states without inputs, at kinks: every number is whole, and stays what it is."""
    step = lambda c, u: 1.5 * jax.nn.relu(c) - jnp.abs(c) * u  # noqa: E731
    xs = jnp.zeros((40, 3), jnp.float32)
    told, off = _told(step, jnp.zeros(3, jnp.float32), xs, forward=pb.FixedPoint())
    assert told.status == pb.Status.OK and off == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_smooth_steps_have_no_kinks(family):
    params, h, us = jax.tree.map(lambda a: a[0], drawn(FAMILIES[family], 0, 1, 4))
    step = functools.partial(FAMILIES[family].step, params)
    assert kinks_of(Recurrence(step, h, us, 4)) == []


# --- radius and bent, by primitive ----------------------------------------------------------------

W = np.asarray([[0.5, -1.5, 1.0], [2.0, 0.25, -1.0], [1.0, 1.0, 0.5]])
PROGRAMS = {
    "add": lambda x: x + x[::-1] - 1,
    "add_any": lambda x: jax.grad(lambda x: jnp.sum(jnp.abs(x) * x + x * x))(x),
    "sub": lambda x: x - jnp.abs(x[::-1]),
    "neg": lambda x: -jnp.abs(x),
    "mul": lambda x: jnp.abs(x) * jnp.where(x > 0, 2.0, 0.5),
    "div": lambda x: jnp.abs(x) / (2 + jnp.where(x[::-1] > 0, 1.0, 0.5)),
    "eq": lambda x: jnp.where(x == 0, 1.0, x),
    "ne": lambda x: jnp.where((x != 0) & (x == x), x, 1.0),
    "lt": lambda x: jnp.where(x < 0, 0.1 * x, x),
    "le": lambda x: jnp.where(~(x <= 0) | (x > 5), x, 0.0),
    "gt": lambda x: jnp.where(x > 0, x, 0.1 * x),
    "ge": lambda x: jnp.where(jnp.all(x >= 0), x, -x),
    "is_finite": lambda x: jnp.where(jnp.isfinite(x), x, 0.0),
    "max": lambda x: jnp.tanh(jnp.maximum(x, 0.1 * x)),
    "min": lambda x: jnp.minimum(x, 2 * x[::-1]),
    "clamp": lambda x: lax.clamp(-0.5, x, 0.5),
    "abs": lambda x: jnp.abs(W @ jnp.abs(x)),
    "sign": lambda x: x * jnp.sign(x),
    "floor": lambda x: jnp.floor(4 * x) / 4,
    "ceil": lambda x: jnp.ceil(x) + jnp.exp(x),
    "round": lambda x: jnp.round(x + 0.5),
    "convert_element_type": lambda x: x * (8 * x).astype(int) + (x > 0),
    "select_n": lambda x: jnp.where(jnp.asarray([True, False, True]), x, jnp.abs(x)),
    "reduce_max": lambda x: x - jnp.max(x),
    "reduce_min": lambda x: x - jnp.min(jnp.abs(x)),
    "argmax": lambda x: x[jnp.argmax(x)] + x,
    "argmin": lambda x: lax.dynamic_slice(x, (jnp.argmin(x),), (1,)) + x,
    "sort": lambda x: jnp.sort(x) * x[jnp.argsort(x)],
    "cond": lambda x: lax.cond(x[0] > 0, jnp.abs, lambda x: 0.5 * x, x),
    "scan": lambda x: lax.scan(lambda a, u: (jnp.maximum(a * u, 0.0), a), x, x)[1][1:],
    "others": lambda x: jnp.cumsum(jnp.abs(x)) ** 2 + jnp.sum(x) * jnp.exp(jnp.sin(jnp.abs(x))),
}


def test_the_table_is_complete():
    assert set(RULES) <= set(PROGRAMS)


@pytest.mark.sampled
@pytest.mark.parametrize("name", PROGRAMS)
@jax.enable_x64(True)
def test_what_moves_and_what_bends(name, request):
    """At, near and far from kinks, for moves from rounding to 0.01, beside curvature."""
    reaches, rng = np.repeat([1e-9, 1e-5, 1e-2], 3), np.random.default_rng(0)
    places = np.where(np.arange(9) % 3 == 2, 0.4, np.arange(9) % 3 * reaches / 3)
    signs = rng.choice([-1.0, 1.0], (9, 3)) * [1, 1, 0.6]
    moves = reaches[:, None, None] * rng.choice([-1.0, -0.4, 0.3, 1.0], (9, 6, 3))

    def measured(name, x, reach, moves):
        f = PROGRAMS[name]
        program = jax.make_jaxpr(f)(jnp.ones(3))
        (ball,) = evaluate_balls(program, [Ball(x, reach + jnp.zeros(3))])
        value, push = jax.linearize(f, x)
        moved, linear = (jax.vmap(g)(moves) for g in (lambda e: f(x + e) - value, push))
        return ball, jnp.abs(moved), jnp.abs(moved - linear)

    def case(name):
        run = lambda *at: lax.map(lambda at: measured(name, *at), at)  # noqa: E731
        return run, (places[:, None] * signs, reaches, moves)

    ball, moved, bent = jax.tree.map(np.asarray, together(request, case))
    # Of NaN, an infinite radius of what is 0, nothing is claimed.
    for reach, place, radius, bend, *differs in zip(
        reaches, places, ball.radius, ball.bent, moved, bent, strict=True
    ):
        slack = 1e-15 + 100 * reach**2
        assert not (differs[0] > radius + slack).any(), (reach, place)
        assert not (differs[1] > bend + slack).any(), (reach, place)


# Where there is no double precision, a cast to it warns.
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype")
def test_where_nothing_is_near_nothing_bends():
    x = jnp.asarray([0.31, 0.83, 0.52])
    programs = {name: jax.make_jaxpr(f)(x) for name, f in PROGRAMS.items()}

    @jit_quickly
    def balls(x):
        at = [Ball(x, jnp.full(3, 1e-4))]
        return {name: evaluate_balls(program, at) for name, program in programs.items()}

    for name, (ball,) in balls(x).items():
        assert (ball.bent == 0).all() and (ball.radius < 2e-2).all(), name


def test_what_is_not_known_is_told():
    step = jax.make_jaxpr(lambda c: jnp.sin(lax.cummax(c)) + lax.linalg.cholesky(jnp.eye(3))[0])
    assert unknown_kinks(step(jnp.ones(3)), [True]) == ["cummax"]
    (ball,) = evaluate_balls(step(jnp.ones(3)), [Ball(jnp.ones(3), jnp.full(3, 1e-6))])
    assert not jnp.isfinite(ball.bent).any()


@pytest.mark.parametrize(
    "f",
    [
        jax.nn.relu, jnp.abs, jnp.floor, jnp.sign, jnp.round, jnp.sort, jnp.cumsum,
        lambda c: jnp.clip(c, -1, 1),
        lambda c: jnp.where(c > 0, c, 0.1 * c),
        lambda c: c * (c == 0),
        lambda c: c.astype(int).astype(c.dtype),
        lambda c: lax.cond(c[0] > 0, lambda c: c, lambda c: 0.1 * c, c),
        lambda c: lax.scan(lambda a, _: (jnp.maximum(a, 0), None), c, None, length=2)[0],
        lambda c: c * jnp.argmax(c),
        lambda c: c - jnp.max(c),
    ],
)  # fmt: skip
def test_a_proof_takes_no_kinks(f):
    """Nor any control flow: of what is zero on either side the second derivative says nothing."""
    step = lambda c, u: (h := jnp.tanh(0.5 * f(c) + u), h)  # noqa: E731
    with pytest.raises(NotImplementedError, match="certify: 'bound'"):
        pb.scan(step, jnp.zeros(2), jnp.ones((9, 2)), forward=pb.FixedPoint(certify="bound"))


# --- random systems -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "name", "dtype"),
    [
        pytest.param(
            f, n, d, marks=() if (f, n, d) == ("leaky", "fixed point", "float32") else SLOW
        )
        for f in PIECEWISE
        for n in ("chunks to the end", "fixed point", "newton")
        for d in ("float32", "float64")
    ],
)
def test_no_error_of_piecewise_systems_is_silent(family, name, dtype):
    """`python -m tests.forward` tries more of them."""
    with jax.enable_x64(True):
        counts = counts_of(outcomes(family, name, "estimate", dtype, 5, 60, length=120))
    assert counts["wrong"] == counts["understated"] == 0
    assert counts["certified"] >= 12
