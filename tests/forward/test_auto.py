"""``forward="auto"``: what is measured, what is probed, and what is exact; and that it says so."""

import dataclasses
import functools
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import parscan_bp as pb
import parscan_bp.linen
import parscan_bp.nnx
from parscan_bp import store
from parscan_bp.choice.facts import Facts
from parscan_bp.choice.forward_map import ForwardMap, Point, forward_map
from parscan_bp.choice.wisdom import Timing
from parscan_bp.forward import Auto, Recurrence
from parscan_bp.forward.exponent import forgetting
from parscan_bp.scan.api import loop_options, plan_of
from parscan_bp.scan.values import forward_wisdom
from parscan_bp.scan.values.forward_wisdom import RememberedForward
from tests.forward.recurrences import draw, elman, lorenz, lstm
from tests.quickly import jit_quickly

N, H = 1024, 3
W, XS, INIT = draw(1, H, H), draw(2, N, 1, H), jnp.zeros((1, H))
POINT = Point(
    jax.default_backend(),
    (0, 0),
    "block",
    1,
    True,
    4,
    H,
    1,
    N,
    {"chunks": (3.0, 1), "newton": (2.0, 5)},
)

LOGISTIC = dataclasses.replace(POINT, structure="diagonal", products=False)

TOLD = (Timing("a", 1e-3, 2.0, 1.9, 2.1),)


def step(h, x, gain=0.5):
    return jnp.tanh(gain * h @ W + x), h


CALM = functools.partial(step, gain=0.5)
WILD = lambda x, u: (3.9 * x * (1 - x), x)  # noqa: E731


@pytest.fixture
def measured(monkeypatch):
    """A map on which chunks are fast for recurrences like these."""
    auto = sys.modules["parscan_bp.scan.values.auto"]
    monkeypatch.setattr(auto, "forward_map", lambda: ForwardMap((POINT, LOGISTIC), 1.1))


def explain(f, init=INIT, xs=XS, **how):
    return pb.explain(f, init, xs, forward="auto", **how)


def reported(f, init=INIT, xs=XS, **asked):
    return pb.scan(f, init, xs, forward=Auto(**asked), report=True)


def check_equal(got, want, atol=1e-5):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=atol)


def test_what_forgets_goes_by_a_method(measured):
    found = explain(CALM)
    choice = found.forward
    assert choice.forward == pb.Chunks() and choice.exponent < -0.1 and choice.comes_back
    assert choice.expected["chunks"] == 1 < choice.expected["newton"] < 12
    assert "values by Chunks" in str(found) and "Lyapunov exponent -" in str(found)
    *got, report = reported(CALM)
    assert report.forward.iterations == 1 and not report.fell_back
    check_equal(got, jax.lax.scan(CALM, INIT, XS))


def test_what_does_not_is_exact(measured):
    choice = explain(WILD, INIT + 0.3).forward
    assert choice.forward == "exact" and choice.exponent > 0.3
    assert "does not forget" in choice.reason
    assert choice.expected["chunks"] is choice.expected["newton"] is None
    *got, report = reported(WILD, INIT + 0.3)
    assert report.forward is None
    for a, b in zip(
        jax.tree.leaves(got), jax.tree.leaves(jax.lax.scan(WILD, INIT + 0.3, XS)), strict=True
    ):
        np.testing.assert_array_equal(a, b)


def test_nothing_was_measured_of_a_proof(measured):
    *got, report = reported(CALM, certify="bound")
    assert report.forward is None
    check_equal(got, jax.lax.scan(CALM, INIT, XS), atol=0)


def test_several_places_to_settle_in(measured):
    """All small differences are forgotten, and a guess leads elsewhere."""
    wells = lambda x, u: (jnp.tanh(1.5 * x @ jnp.eye(H) + u), x)  # noqa: E731
    us = (0.01 * XS).at[5:8].set(2.5)
    choice = explain(wells, INIT - 1, us).forward
    assert choice.exponent < -0.5 and not choice.comes_back and choice.forward == "exact"
    assert "begun anew it goes elsewhere" in str(choice)


def test_what_is_not_finite_is_exact(measured):
    choice = explain(CALM, xs=XS.at[3].set(jnp.nan)).forward
    assert choice.forward == "exact" and np.isnan(choice.exponent)
    assert reported(CALM, xs=XS.at[3].set(jnp.nan))[2].status == pb.Status.NON_FINITE


def test_gradients_have_values_and_traces_have_none(measured):
    def last(init, xs):
        h, _, report = reported(CALM, init, xs)
        return jnp.sum(h), report

    got, report = jax.grad(last, (0, 1), has_aux=True)(INIT, XS)
    assert report.forward.iterations == 1
    want = jax.grad(lambda i, xs: jnp.sum(jax.lax.scan(CALM, i, xs)[0]), (0, 1))(INIT, XS)
    check_equal(got, want)
    assert jit_quickly(last)(INIT, XS)[1].forward is None
    assert jax.vmap(last)(INIT[None], XS[None])[1].forward is None
    types = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), (INIT, XS))
    assert "nothing is probed in a trace" in explain(CALM, *types).forward.reason


def test_reverse_and_other_options(measured):
    """The stretch that is probed is the one that comes first."""
    xs = XS.at[: N // 2].set(jnp.nan)
    choice = explain(CALM, xs=xs, reverse=True).forward
    assert choice.forward == pb.Chunks()
    got, want = (
        pb.scan(CALM, INIT, XS, None, True, forward="auto"),
        jax.lax.scan(CALM, INIT, XS, None, True),
    )
    check_equal(got, want)
    *_, report = reported(CALM, tolerance=1e-2, fallback=False)
    assert np.isclose(report.forward.tolerance, 1e-2)
    with pytest.raises(ValueError, match="fallback: False wants report=True"):
        pb.scan(CALM, INIT, XS, forward=Auto(fallback=False))


def integer(carry, x):
    return (carry[0] + 1, step(carry[1], x)[0]), x


REFUSED = {
    "an integer": (integer, (0, INIT), "int"),
    "bfloat16": (lambda h, x: (jnp.tanh(h), x), jnp.ones((1, H), jnp.bfloat16), "bfloat16"),
    "a loop": (
        lambda h, x: (jax.lax.while_loop(lambda v: v[0, 0] < 1, lambda v: v + 1, h), x),
        INIT,
        "while",
    ),
    "no carry": (lambda h, x: (h, x), (), "nothing to solve"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_method_takes_is_exact_and_says_why(name, measured):
    f, init, message = REFUSED[name]
    assert message in explain(f, init).forward.reason
    assert reported(f, init)[2].forward is None


def test_a_solver_that_wants_another_forward_pass(measured):
    """It keeps what `jax.lax.scan` makes on its way."""
    choice = explain(CALM, solver=pb.Sweep(recompute=False)).forward
    assert choice.forward == "exact" and "Sweep" in choice.reason


@pytest.mark.slow
@pytest.mark.parametrize("library", ["nnx", "linen"])
def test_layers(library, measured):
    x = draw(3, 1, N, 3)
    if library == "nnx":
        make = lambda of, **how: of.RNN(nnx.SimpleCell(3, H, rngs=nnx.Rngs(0)), **how)  # noqa: E731
        (got, report) = make(parscan_bp.nnx, forward="auto", report=True)(x)
        want = make(nnx)(x)
    else:
        layer = parscan_bp.linen.RNN(nn.SimpleCell(H), forward="auto", report=True)
        variables = nn.RNN(nn.SimpleCell(H)).init(jax.random.key(0), x)
        got, report = layer.apply(variables, x)
        want = nn.RNN(nn.SimpleCell(H)).apply(variables, x)
    assert report.forward is not None and report.forward.iterations == 1
    check_equal(got, want)


def test_disable_jit_and_custom_vjp(measured):
    with jax.disable_jit():
        check_equal(pb.scan(CALM, INIT, XS[:9], forward="auto"), jax.lax.scan(CALM, INIT, XS[:9]))
    check_equal(
        pb.custom_vjp_scan(CALM, INIT, XS[:9], forward="auto"), jax.lax.scan(CALM, INIT, XS[:9])
    )


FACTS = Facts("cpu", 4096, 1, 8, 1, 4, "block", "matrix-free", 8, 999, (0, 10))


def point(**what):
    fields = {
        **{"platform": "cpu", "jax_version": (0, 10), "structure": "block", "leaves": 1},
        **{"products": True, "equations": 8, "features": 8, "batch": 1, "length": 4096},
        "methods": {"chunks": (2.0, 1), "newton": (1.5, 4)},
    }
    return Point(**{**fields, **what})


def speedup(*points, method="chunks", iterations=1, products=True):
    how = {"products": products, "method": method, "iterations": iterations}
    return ForwardMap(points, 1.1).speedup(FACTS, **how)


def test_the_map_takes_the_slowest_near_by():
    assert speedup(point(), point(features=16, methods={"chunks": (1.2, 1)})) == 1.2
    assert speedup(point(), point(features=32, methods={"chunks": (0.2, 1)})) == 2.0  # far
    assert speedup(point(), point(methods={})) is None  # it did not converge there
    assert speedup(point(), method="newton", iterations=8) == 0.75  # twice the iterations
    assert speedup(point(), method="newton", iterations=2) == 1.5
    assert speedup(point(jax_version=(0, 12))) is None and speedup() is None
    assert speedup(point(jax_version=(0, 9), methods={"chunks": (9.0, 1)}), point()) == 2.0
    for other in (
        {"leaves": 2},
        {"structure": "diagonal"},
        {"platform": "gpu"},
        {"products": False},
    ):
        assert speedup(point(**other)) is None


def test_the_map_of_the_package_is_one():
    found = forward_map()
    assert found.margin > 1 and all(
        p.methods.keys() <= {"chunks", "newton", "fixed_point"} for p in found.points
    )


def test_what_was_raced_is_taken_and_only_where_it_is_allowed(tmp_path, monkeypatch):
    monkeypatch.setenv(store.VARIABLE, str(tmp_path))
    key = plan_of(CALM, INIT, XS, loop_options(None, False, 1), None, "auto")[0].key
    forward_wisdom.remember(key, RememberedForward(pb.Newton(max_passes=20), TOLD))
    assert explain(CALM).forward.forward == pb.Newton(max_passes=20)
    assert "measured on this machine" in explain(CALM).forward.reason
    run = jit_quickly(lambda init: reported(CALM, init)[2].forward)  # in a trace, too
    assert run(INIT).iterations > 1
    assert pb.scan(CALM, INIT, XS, report=True)[2].forward is None
    forward_wisdom.remember(key, RememberedForward("exact", TOLD))
    assert explain(CALM).forward.forward == "exact" and run.trace(INIT) is not None
    with pytest.raises(ValueError, match="is not to be remembered"):
        forward_wisdom.remember(key, RememberedForward(pb.Newton(guess=XS), TOLD))


@dataclasses.dataclass(frozen=True, repr=False)
class Sweeps(pb.forward.Forward):
    """A method of one's own: so many corrections of all steps by their residuals."""

    count: int = 40

    def evaluate(self, recurrence, tolerance):
        def corrected(_, states):
            return jax.tree.map(jnp.subtract, states, recurrence.residuals(states))

        shape = lambda a: jnp.broadcast_to(a, (recurrence.length, *a.shape))  # noqa: E731
        states = jax.tree.map(shape, recurrence.init)
        states = jax.lax.fori_loop(0, self.count, corrected, states)
        largest = max(jnp.abs(r).max() for r in jax.tree.leaves(recurrence.residuals(states)))
        return pb.forward.Trajectory(states, jnp.asarray(self.count), largest <= tolerance)


def test_a_method_of_ones_own_is_taken_where_it_won(tmp_path, monkeypatch):
    monkeypatch.setenv(store.VARIABLE, str(tmp_path))
    key = plan_of(CALM, INIT, XS, loop_options(None, False, 1), None, "auto")[0].key
    forward_wisdom.remember(key, RememberedForward(Sweeps(50), TOLD))
    assert explain(CALM).forward.forward == Sweeps(50)
    assert int(reported(CALM, INIT)[2].forward.iterations) == 50


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "make", [elman, pytest.param(lstm, marks=SLOW), pytest.param(lorenz, marks=SLOW)]
)
def test_the_exponent_is_that_of_the_jacobians(make):
    """Of their product over the second half, from the direction that the first one leaves."""
    recurrence = make(60)
    found = jit_quickly(lambda: forgetting(recurrence))()
    flat, apart = jax.flatten_util.ravel_pytree(recurrence.init)
    jacobian = lambda x, u: jax.jacfwd(  # noqa: E731
        lambda x: jax.flatten_util.ravel_pytree(recurrence.step(apart(x), u))[0]
    )(x)
    x, v, grown = flat, np.ones(flat.size), []
    for t in range(60):
        u = jax.tree.map(lambda a, t=t: a[t], recurrence.inputs)
        v = np.asarray(jacobian(x, u), np.float64) @ v
        grown.append(np.log(np.abs(v).max()))
        v /= np.abs(v).max()
        x = jax.flatten_util.ravel_pytree(recurrence.step(apart(x), u))[0]
    assert abs(found.exponent - np.mean(grown[30:])) < 0.1


@pytest.mark.parametrize("gain", [0.1, 0.3, 0.6])
@pytest.mark.parametrize("name", ["chunks", "newton", "fixed_point"])
def test_what_is_expected_is_about_what_happens(name, gain):
    method = {"chunks": pb.Chunks(), "newton": pb.Newton(), "fixed_point": pb.FixedPoint()}[name]
    recurrence = elman(N, gain)
    first = Recurrence(recurrence.step, recurrence.init, recurrence.inputs[:64], 64)
    rates = jit_quickly(lambda: forgetting(first))()
    expected = method.expected(N, float(max(rates)), 1e-6)
    taken = int(jit_quickly(lambda: method.evaluate(recurrence, 1e-6))().iterations)
    assert taken / 2 - 1 <= expected <= 2 * taken + 2
