"""Remedies: their equations, and that they help where they should."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from quickly import jit_quickly

from parscan_bp import pipeline

RATE = 0.3


def _steps(optimiser, gradients, w0):
    """The weights of every step; gradients of (step, weights)."""
    return _steps_of([optimiser], gradients, w0)[0]


def _steps_of(optimisers, gradients, w0, predicting=()):
    """Those of each optimiser, in one program; one that predicts is asked for gradients there."""
    given = isinstance(gradients, list)

    def train_by(optimiser, w, draws):
        def step(carry, g):
            w, state = carry
            at = pipeline.stale_params(state, w) if optimiser in predicting else w
            updates, state = optimiser.update(g if given else gradients(at), state, w)
            return (w + updates, state), w + updates

        length = None if given else 60
        return jax.lax.scan(step, (w, optimiser.init(w)), draws, length=length)[1]

    @jit_quickly
    def train(w, draws):
        return [train_by(each, w, draws) for each in optimisers]

    w = np.asarray(w0, np.float32)
    histories = train(w, np.stack(gradients) if given else None)
    return [np.concatenate([w[None], history]) for history in histories]


def _draws(count, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=3).astype(np.float32) for _ in range(count)]


@pytest.mark.parametrize("delay", [1, 2, 5])
def test_the_learning_rate_falls_with_the_delay(delay):
    draws = _draws(12)
    given = [*itertools.product((1.0, 0.5), (None, 4))]
    remedies = [[], *([pipeline.LearningRateByStaleness(*each)] for each in given)]
    late = [pipeline.stale(optax.sgd(1.0), delay, remedies=each) for each in remedies]
    plain, *all_ours = _steps_of(late, draws, [0.0] * 3)
    for (power, anneal), ours in zip(given, all_ours, strict=True):
        for n in range(12):
            left = 1.0 if anneal is None else 1 - min(max(n - delay, 0) / anneal, 1)
            wanted = (plain[n + 1] - plain[n]) / delay ** (power * left)
            np.testing.assert_allclose(ours[n + 1] - ours[n], wanted, atol=1e-6)


@pytest.mark.parametrize("decay", [None, 0.9])
@pytest.mark.parametrize("delay", [1, 3])
def test_compensation_is_the_papers_first_order_term(delay, decay):
    draws, strength = _draws(10), 0.7
    remedy = pipeline.DelayCompensation(strength, decay)
    got = _steps(pipeline.stale(optax.sgd(RATE), delay, remedies=[remedy]), draws, [1.0] * 3)
    w, v = [np.ones(3)], np.zeros(3)
    for n in range(10):
        step = np.zeros(3)
        if n >= delay:
            g = np.asarray(draws[n - delay], np.float64)
            factor = strength
            if decay is not None:
                v = decay * v + (1 - decay) * g * g
                factor = strength / np.sqrt(v + 1e-7)
            step = -RATE * (g + factor * g * g * (w[n] - w[n - delay]))
        w.append(w[-1] + step)
    np.testing.assert_allclose(got, w, atol=1e-5)


@pytest.mark.parametrize("delay", [1, 2, 4])
def test_feedback_adds_the_error_of_the_step_in_which_the_gradient_was_taken(delay):
    draws, strength = _draws(14), 0.8
    remedy = pipeline.ErrorFeedback(strength)
    got = _steps(pipeline.stale(optax.sgd(1.0), delay, remedies=[remedy]), draws, [0.0] * 3)
    u = lambda n: -np.asarray(draws[n]) if n >= 0 else np.zeros(3)  # noqa: E731
    for n in range(14):
        wanted = u(n - delay) + strength * (u(n - delay) - u(n - 2 * delay))
        wanted = wanted if n >= delay else np.zeros(3)
        np.testing.assert_allclose(got[n + 1] - got[n], wanted, atol=1e-5)


@pytest.mark.parametrize("optimiser", [optax.sgd(0.1, momentum=0.9), optax.adam(0.1)])
def test_prediction_goes_on_by_the_last_update(optimiser):
    params = {"early": jnp.ones(2), "late": jnp.ones(2)}
    late = pipeline.stale(
        optimiser, {"early": 3, "late": 0}, remedies=[pipeline.WeightPrediction()]
    )
    state, update = late.init(params), jit_quickly(late.update)
    for n in range(6):
        updates, state = update(jax.tree.map(lambda p: p + n, params), state, params)
        predicted = pipeline.stale_params(state, params)
        np.testing.assert_allclose(predicted["early"], params["early"] + 3 * updates["early"])
        np.testing.assert_array_equal(predicted["late"], params["late"])


def test_prediction_undoes_the_delay_of_a_steady_drift():
    """Where the updates are constant, the prediction is where the weights will be."""
    optimiser = pipeline.stale(optax.sgd(0.5), 4, remedies=[pipeline.WeightPrediction()])
    w = jnp.zeros(2)
    state, seen, predicted = optimiser.init(w), [], []
    update = jit_quickly(optimiser.update)
    for _ in range(15):
        seen.append(w)
        predicted.append(pipeline.stale_params(state, w))
        updates, state = update(jnp.array([1.0, -2.0]), state, w)
        w = w + updates
    for n in range(5, 11):
        np.testing.assert_allclose(predicted[n], seen[n + 4], atol=1e-6)


def test_each_remedy_helps_where_a_delay_makes_gradient_descent_diverge():
    """On w^2 / 2 late SGD is stable below the rate 2 sin(pi / (2 (2 d + 1))): 0.347 for d = 4."""
    curve = lambda w: w  # noqa: E731
    rate, delay = 0.4, 4

    def late(rate, *remedies):
        return pipeline.stale(optax.sgd(rate), delay, remedies=remedies)

    each = [
        late(rate),
        late(rate / 2),
        late(rate, pipeline.LearningRateByStaleness()),
        late(rate, pipeline.DelayCompensation(0.3)),
        late(rate, pipeline.DelayCompensation(0.3, decay=0.9)),
    ]
    plain, half, slower, *compensated = [abs(w[-1, 0]) for w in _steps_of(each, curve, [1.0])]
    assert plain > 2.0 and half < 0.1 and slower < 0.1
    # g = w here: g g^T is a Hessian near |w| = 1, and too small where the weights are small.
    assert max(compensated) < plain


def test_feedback_and_prediction_bring_back_the_decay_without_a_delay():
    """On w^2 / 2: w falls by 1 - rate a step, faster with late gradients, which are too large."""
    delay, rate = 3, 0.03

    remedies = [], [pipeline.ErrorFeedback()], [pipeline.WeightPrediction()]
    each = [pipeline.stale(optax.sgd(rate), delay, remedies=own) for own in remedies]
    late, fed_back, predicted = (
        abs(float(w[60, 0] / w[40, 0]) ** (1 / 20) - (1 - rate))
        for w in _steps_of(each, lambda w: w, [1.0], predicting=each[2:])
    )
    assert late > 1e-3
    assert fed_back < 0.5 * late
    assert predicted < 0.2 * late


def test_remedies_apply_one_after_the_other_and_never_to_a_stage_in_time():
    draws = _draws(6)
    pair = [pipeline.LearningRateByStaleness(), pipeline.ErrorFeedback()]
    sgd = optax.sgd(1.0)
    late = (pipeline.stale(sgd, 2, remedies=own) for own in (pair, pair[1:]))
    each = [*late, sgd, pipeline.stale(sgd, 0, remedies=pair)]
    both, alone, plain, in_time = _steps_of(each, draws, [0.0] * 3)
    for n in range(6):
        wanted = (alone[n + 1] - alone[n]) / 2
        np.testing.assert_allclose(both[n + 1] - both[n], wanted, atol=1e-6)
    np.testing.assert_array_equal(in_time, plain)


def test_unified_momentum_is_its_equations_and_what_it_is_known_to_be():
    draws, rate, beta = _draws(10), 0.2, 0.7
    known = {
        0.0: optax.sgd(rate, momentum=beta),
        0.4: None,
        1.0: optax.sgd(rate, momentum=beta, nesterov=True),
        1 / (1 - beta): optax.sgd(rate / (1 - beta)),
    }
    ours = [pipeline.unified_momentum(rate, beta, s) for s in known]
    chained = optax.chain(optax.clip(1.0), ours[2])
    theirs = [each for each in known.values() if each]
    *made, last = _steps_of([*ours, *theirs, chained], draws, [1.0] * 3)
    for s, got in zip(known, made[:4], strict=True):
        w = ys = np.ones(3)
        for n, g in enumerate(np.asarray(draws, np.float64)):
            y, ys_new = w - rate * g, w - s * rate * g
            w, ys = y + beta * (ys_new - ys), ys_new
            np.testing.assert_allclose(got[n + 1], w, atol=1e-5)
    for got, wanted in zip([made[0], *made[2:4]], made[4:], strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-5)
    assert last[-1].shape == (3,)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: pipeline.LearningRateByStaleness(-1.0), ValueError, "power: got -1"),
        (lambda: pipeline.LearningRateByStaleness(anneal=0), ValueError, "anneal: got 0"),
        (lambda: pipeline.DelayCompensation(-0.1), ValueError, "strength: got -0.1"),
        (lambda: pipeline.DelayCompensation(0.1, 1.0), ValueError, "decay: got 1.0"),
        (lambda: pipeline.ErrorFeedback("much"), TypeError, "strength: got 'much'"),
        (lambda: pipeline.unified_momentum(0.1, 1.0, 0.0), ValueError, "momentum: got 1.0"),
        (lambda: pipeline.stale_params(3, jnp.ones(1)), TypeError, "state: got 3"),
        (
            lambda: pipeline.stale_params(
                pipeline.stale(optax.sgd(1.0), 1).init(jnp.ones(1)), jnp.ones(1)
            ),
            ValueError,
            "keeps no update to predict by",
        ),
        (lambda: _without_params(), ValueError, "params: got None; remedies need them"),
    ],
)
def test_mistakes(make, error, words):
    with pytest.raises(error, match=words):
        make()


def _without_params():
    optimiser = pipeline.stale(optax.sgd(1.0), 1, remedies=[pipeline.DelayCompensation(0.1)])
    w = jnp.ones(1)
    return optimiser.update(w, optimiser.init(w))
