"""Where stale weights fail: a plain net of six layers at a large rate; and what helps there."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from networks import cross_entropy, head, hidden
from quickly import jit_quickly

from parscan_bp import pipeline

SIZES = [2, 32, 32, 32, 32, 32, 3]
BATCHES = 300


def _spirals():
    """Points on three spirals, (batches, rows, 2), and labels."""
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=(BATCHES, 32))
    radius = rng.uniform(0.1, 1, size=labels.shape)
    angle = 4 * radius + 2 * np.pi / 3 * labels + 0.1 * rng.normal(size=labels.shape)
    points = radius[..., None] * np.stack([np.cos(angle), np.sin(angle)], -1)
    return jnp.asarray(points, jnp.float32), jnp.asarray(labels)


def _params():
    rng = np.random.default_rng(1)
    return [
        {
            "kernel": jnp.asarray(rng.normal(size=(a, b)) / np.sqrt(a), jnp.float32),
            "bias": jnp.zeros(b, jnp.float32),
        }
        for a, b in itertools.pairwise(SIZES)
    ]


def _through(params, x, last):
    for own in params[:-1]:
        x = hidden(own, x)
    return (head if last else hidden)(params[-1], x)


@pytest.mark.slow
def test_dsp_needs_a_small_rate_on_a_deep_plain_net():
    params, data = _params(), list(zip(*_spirals(), strict=True))
    blocks = [lambda p, x: _through(p, x, False)] * 2 + [lambda p, x: _through(p, x, True)]

    def end(schedule, rate):
        made = pipeline.run(
            blocks,
            schedule,
            optax.sgd(rate, momentum=0.9),
            cross_entropy,
            [params[:2], params[2:4], params[4:]],
            data,
        )
        return float(made.losses[-40:].mean())

    dsp = pipeline.DSP((1, 1, 0), (4, 2, 0))
    assert end(pipeline.BackPropagation(), 0.05) < 0.1 < 0.9 < end(dsp, 0.05)
    assert end(dsp, 0.005) < 0.75


def test_a_remedy_closes_most_of_the_gap_of_two_late_steps():
    data, start = _spirals(), _params()
    ways = (0,), (2,), (2, pipeline.WeightPrediction()), (2, pipeline.LearningRateByStaleness())

    def losses_of(start, delay, *remedies):
        optimiser = pipeline.stale(optax.sgd(0.02, momentum=0.9), delay, remedies=remedies)
        predict = pipeline.WeightPrediction() in remedies

        def step(carry, batch):
            params, state = carry
            at = pipeline.stale_params(state, params) if predict else params
            loss = lambda p: cross_entropy(_through(p, batch[0], True), batch[1])  # noqa: E731
            value, gradient = jax.value_and_grad(loss)(at)
            updates, state = optimiser.update(gradient, state, params)
            return (optax.apply_updates(params, updates), state), value

        return jax.lax.scan(step, (start, optimiser.init(start)), data)[1]

    all_losses = jit_quickly(lambda start: [losses_of(start, *way) for way in ways])(start)
    plain, late, predicted, smaller = (float(losses[-40:].mean()) for losses in all_losses)
    assert plain < 0.1 and late > plain + 0.3
    assert min(predicted, smaller) < plain + 0.7 * (late - plain), (plain, late, predicted, smaller)
