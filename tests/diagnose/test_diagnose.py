"""The numbers and words of a diagnosis, and what `diagnose` refuses."""

import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parscan_bp as pb

WEIGHTS = np.array([[0.6, -0.3], [0.4, 0.2]])


def tanh_step(h, x):
    h = jnp.tanh(WEIGHTS @ h + x)
    return h, h * x


@pytest.fixture(scope="module")
def clean():
    """A diagnosis of a scan, backwards in time, and what NumPy makes of the same."""
    xs = np.random.default_rng(0).normal(size=(30, 2)).astype(jnp.zeros(()).dtype)
    found = pb.diagnose(
        tanh_step, jnp.ones(2), xs, reverse=True, loss=lambda h, ys: jnp.sum(h**2) + jnp.sum(ys)
    )
    h, steps = np.ones(2), []
    for x in xs[::-1].astype(float):
        h = np.tanh(WEIGHTS @ h + x)
        steps.append(((1 - h**2)[:, None] * WEIGHTS, x, h))
    cotangents, push = [2 * h], np.array([1.0, 1.0])
    for jacobian, x, _ in steps[::-1]:
        cotangents.append(jacobian.T @ (cotangents[-1] + x))
    growth = []
    for jacobian, _, _ in steps:
        push = jacobian @ push
        growth.append(abs(push).max())
        push /= growth[-1]
    norms = [np.linalg.norm(ct) for ct in cotangents[::-1]]
    return found, SimpleNamespace(norms=norms, growth=growth)


def test_norms_are_those_of_the_cotangents(clean):
    found, numpy = clean
    np.testing.assert_allclose(found.norms, numpy.norms, rtol=1e-4)


def test_growth_is_that_of_a_tangent_and_its_mean_the_exponent(clean):
    found, numpy = clean
    # Whatever the signs it began with: the direction is forgotten.
    np.testing.assert_allclose(found.growth[15:], numpy.growth[15:], rtol=1e-3)
    assert found.exponent == pytest.approx(np.mean(np.log(numpy.growth[15:])), rel=1e-3)


def test_a_clean_chain_is_called_so(clean):
    found, _ = clean
    assert found.faults == () and found.first is None and found.remarks == ()
    first, *others = str(found).splitlines()
    assert first == ("30 steps, the last of xs first: all finite: values, Jacobians, cotangents")
    assert [line.split(":")[0] for line in others] == [
        "cotangents of the carry",
        "largest Lyapunov exponent",
        "memory",
    ]


def test_memory_and_thresholds_of_what_grows_and_what_shrinks():
    rates = jnp.array([0.5, 0.25])
    shrinks = pb.diagnose(lambda h, x: (rates * h, None), jnp.ones(2), length=40)
    # 0.5**k of one of two entries falls below a thousandth of the norm, which is root 2.
    assert shrinks.memory == next(k for k in range(40) if 0.5**k < 1e-3 * math.sqrt(2))
    assert shrinks.exponent == pytest.approx(math.log(0.5), rel=1e-5)
    wanted = np.sqrt(0.5 ** (2.0 * np.arange(41)) + 0.25 ** (2.0 * np.arange(41)))[::-1]
    np.testing.assert_allclose(shrinks.norms, wanted, rtol=1e-5)
    grows = pb.diagnose(
        lambda h, x: (2 * h, h), 1.0, length=20, reverse=True, threshold=1000, fraction=0.5
    )
    assert grows.memory == math.inf and grows.threshold == 1000
    carry, cotangent = grows.faults
    # The first step to pass 1,000 is the 10th to run forwards, and the 10th to run backwards.
    assert (carry.quantity, carry.step, carry.what) == ("carry", 10, "beyond the threshold")
    assert (cotangent.quantity, cotangent.step) == ("cotangent", 9)
    assert carry.operation.primitive == cotangent.operation.primitive == "mul"
    slopes = pb.diagnose(lambda h, x: (jnp.tanh(1e4 * h), None), 1e-9, length=3, threshold=10)
    # Where it is flat again, cotangents vanish.
    assert [(f.quantity, f.step) for f in slopes.faults] == [("Jacobian", 0)]


def test_reverse_tells_steps_by_their_index_into_xs():
    xs = jnp.array([1.0, 0.0, 2.0, 3.0])
    found = pb.diagnose(lambda h, x: (1 / (h * x), h), jnp.ones(2), xs, reverse=True)
    assert [(f.step, f.what) for f in found.faults] == [(1, "infinite")]
    assert "the last of xs first" in str(found)


def test_leaves_without_tangents_and_types_that_are_promoted():
    def step(carry, x):
        key, draw = jax.random.split(carry["key"])
        noise = jax.random.normal(draw, (2,))
        flips, h = ~carry["flag"], carry["h"] * 2.0 + noise * x
        return {"key": key, "flag": flips, "n": carry["n"] + 1, "h": h}, carry["n"]

    init = {"key": jax.random.key(0), "flag": np.True_, "n": 0, "h": np.ones(2, np.float16)}
    init["h"] = jnp.asarray(init["h"], jnp.zeros(()).dtype)
    xs = np.where(np.arange(6) == 4, np.nan, 1).astype(init["h"].dtype)
    found = pb.diagnose(step, init, xs)
    assert found.first.leaf == "carry['h']" and found.first.step == 4
    assert found.first.came_by == "xs" and found.first.operation is None
    counted = pb.diagnose(lambda n, x: (n + 1, n), 0, length=3)
    assert counted.exponent is None and counted.memory is None and not counted.faults
    promoted = pb.diagnose(lambda h, x: (h * jnp.float32(2), h), 1, length=130)
    assert promoted.faults[0].step == 127 and promoted.faults[0].operation.primitive == "mul"


@pytest.mark.parametrize("length", [0, 1])
def test_few_steps(length):
    found = pb.diagnose(lambda h, x: (h / x, h), jnp.ones(2), jnp.zeros(length))
    assert found.length == length and found.norms.shape == (length + 1,)
    assert [f.step for f in found.faults] == [0] * length
    if not length:
        assert found.exponent is None and str(found).startswith("0 steps: all finite")


def test_what_init_holds_is_told():
    low = {"low": jnp.inf, "h": 1.0}
    step = lambda c, x: ({"low": jnp.minimum(c["low"], x), "h": c["h"] / x}, None)  # noqa: E731
    found = pb.diagnose(step, low, jnp.array([1.0, 2.0, 0.0, 1.0]))
    assert (found.first.leaf, found.first.step) == ("carry['h']", 2)
    assert "carry['low'] is infinite in init" in found.remarks[0]
    started = pb.diagnose(lambda h, x: (h, None), jnp.array([1.0, np.nan]), length=2)
    assert [(f.quantity, f.step, f.what) for f in started.faults] == [("carry", None, "NaN")]


def test_the_loss_and_constants_are_looked_at_too():
    step = lambda h, x: (0.5 * h, h - 1)  # noqa: E731
    found = pb.diagnose(step, 2.0, length=4, loss=lambda h, ys: h + jnp.sum(jnp.sqrt(ys[:2])))
    assert [(f.quantity, f.step, f.leaf) for f in found.faults] == [("cotangent", None, "ys")]
    assert found.first.operation.primitive == "sqrt" and found.first.entry == (1,)
    logged = pb.diagnose(step, 1.0, length=4, loss=lambda h, ys: jnp.log(h - h))
    assert (logged.first.quantity, logged.first.operation.primitive) == ("loss", "log")
    given = pb.diagnose(step, 1.0, length=4, cotangents=(1.0, jnp.array([0, 0, np.inf, 0])))
    assert (given.first.leaf, given.first.step, given.first.entry) == ("ys", None, (2,))
    rates = jnp.array([1.0, 0.0])
    found = pb.diagnose(lambda h, x: (h * jnp.sqrt(rates), h), jnp.ones(2), length=4)
    assert found.first.leaf.startswith("a constant of the step, float")
    assert (found.first.step, found.first.operation.primitive) == (3, "sqrt")


def test_jax_looking_for_nans_itself_does_not_come_first():
    with jax.debug_nans(True), jax.disable_jit():
        found = pb.diagnose(lambda h, x: (jnp.log(h), None), -1.0, length=2)
    assert found.first.operation.primitive == "log"


def test_mistakes():
    step, h = lambda h, x: (h, h), jnp.ones(2)
    mistakes = [
        ({"loss": jnp.add, "cotangents": (h, h)}, ValueError, "got both"),
        ({"loss": lambda h, ys: h}, TypeError, "loss: .*a real scalar is wanted"),
        ({"loss": lambda h, ys: (1, 2)}, TypeError, "loss: .*a real scalar is wanted"),
        ({"cotangents": h}, ValueError, "cotangents: got another structure"),
        ({"cotangents": (h, h)}, ValueError, r"cotangents: got one of shape \(2,\) for \(3, 2\)"),
        ({"threshold": 0}, ValueError, "threshold: got 0"),
        ({"threshold": "1"}, TypeError, "threshold: got '1'"),
        ({"fraction": 2}, ValueError, "fraction: got 2"),
    ]
    for how, error, words in mistakes:
        with pytest.raises(error, match=words):
            pb.diagnose(step, h, length=3, **how)
    with pytest.raises(TypeError, match="scan"):
        pb.diagnose(lambda h, x: (h[0], h), h, length=3)
    with pytest.raises(TypeError, match=r"init: got one that holds traced values.*jax.jit"):
        jax.jit(lambda v: pb.diagnose(step, v, length=3))(h)
    with pytest.raises(TypeError, match="step: got one that closes over traced values"):
        jax.jit(lambda v: pb.diagnose(lambda h, x: (h + v, h), h, length=3))(h)
