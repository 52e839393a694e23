"""DSP's eq. 5 with its queues, from the text: blocks tanh(h w), momentum, a squared loss."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from parscan_bp import pipeline
from tests.papers.precision import TOLERANCE

TABLE_1 = [
    ((1, 1, 0), (4, 2, 0)),
    ((2, 2, 0), (6, 3, 0)),
    ((3, 3, 0), (10, 5, 0)),
    ((1, 1, 1, 0), (6, 4, 2, 0)),
    ((2, 2, 2, 0), (9, 6, 3, 0)),
    ((3, 3, 3, 0), (15, 10, 5, 0)),
]
RATE, MOMENTUM, BATCHES = 0.05, 0.9, 24


def equation_5(m, weights, batches):
    """Weights at the end, and losses.

    Batch n goes forward by version max(0, n - m_k) of block k, and backward, linearised again at
    the inputs that it had, by version n.
    """
    blocks = len(weights)
    versions, moments = [[w] for w in weights], [np.zeros_like(w) for w in weights]
    losses = []
    for n, (x, target) in enumerate(batches):
        inputs = [x]
        for k in range(blocks - 1):
            inputs.append(np.tanh(inputs[-1] @ versions[k][max(0, n - m[k])]))
        out = np.tanh(inputs[-1] @ versions[-1][n])
        losses.append(np.mean((out - target) ** 2))
        ct = 2 * (out - target) / out.size
        for k in reversed(range(blocks)):
            w = versions[k][n]
            inside = ct * (1 - np.tanh(inputs[k] @ w) ** 2)
            moments[k] = MOMENTUM * moments[k] + inputs[k].T @ inside
            versions[k].append(w - RATE * moments[k])
            ct = inside @ w.T
    return [own[-1] for own in versions], losses


@functools.cache
def problem(blocks):
    rng = np.random.default_rng(blocks)
    weights = rng.normal(size=(blocks, 6, 6)) / 3
    batches = rng.normal(size=(BATCHES, 2, 4, 6))
    return list(weights), [(x, target / 2) for x, target in batches]


@pytest.mark.parametrize(("p", "m"), TABLE_1, ids=str)
def test_the_simulator_is_equation_5(p, m):
    weights, batches = problem(len(p))
    want, losses = equation_5(m, weights, batches)
    got = pipeline.run(
        [lambda w, x: jnp.tanh(x @ w)] * len(p),
        pipeline.DSP(p, m),
        optax.sgd(RATE, momentum=MOMENTUM),
        lambda y, target: jnp.mean((y - target) ** 2),
        jax.tree.map(jnp.asarray, weights),
        jax.tree.map(jnp.asarray, batches),
    )
    np.testing.assert_allclose(got.losses, losses, atol=TOLERANCE)
    for ours, theirs in zip(got.params, want, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=TOLERANCE)


@pytest.mark.parametrize(("p", "m"), TABLE_1, ids=str)
def test_queues_bring_inputs_and_cotangents_together(p, m):
    """Appendix A: q_k = m_k - m_(k+1) - p_k cotangents wait before block k + 1's."""
    queues = [a - b - own for a, b, own in zip(m, m[1:], p, strict=False)]
    assert min(queues) >= 0
    other = tuple(k + 1 for k in p)
    with pytest.raises(ValueError):
        pipeline.DSP(other, m)
