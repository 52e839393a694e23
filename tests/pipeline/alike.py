"""Blocks of one shape, their data, and how results are compared."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from parscan_bp import layers, pipeline

WIDTH, ROWS, CLASSES = 8, 4, 3
TWO = pipeline.DSP((1, 0), (2, 0))
"""The shortest queues between two blocks."""


def residual(params, x):
    """x + tanh(x W + b) V."""
    w, b, v = params
    return x + jnp.tanh(x @ w + b) @ v


def noisy(params, state, x, key):
    """Dropout and moving means, and a counter."""
    kept = jax.random.bernoulli(key, 0.5, x.shape).astype(x.dtype)
    y = residual(params, x) * kept
    mean = 0.9 * state["mean"] + 0.1 * x.mean(0)
    return y - state["mean"], {"mean": mean, "passes": state["passes"] + 1}


STACK = [layers.Linear(WIDTH), jnp.tanh, layers.Linear(WIDTH)]
"""What `parscan_bp.chain` takes."""


def cross_entropy(scores, labels):
    """Mean over the batch."""
    return optax.softmax_cross_entropy_with_integer_labels(scores[:, :CLASSES], labels).mean()


def params_of(blocks, seed=0):
    """Of residual blocks."""
    rng = np.random.default_rng(seed)
    make = lambda *shape: jnp.asarray(0.3 * rng.normal(size=shape), jnp.float32)  # noqa: E731
    return [(make(WIDTH, WIDTH), make(WIDTH), make(WIDTH, WIDTH)) for _ in range(blocks)]


def data(batches, rows=ROWS, seed=1):
    """Noise with labels."""
    rng = np.random.default_rng(seed)
    return [
        (rng.normal(size=(rows, WIDTH)).astype(np.float32), rng.integers(CLASSES, size=rows))
        for _ in range(batches)
    ]


def line(blocks):
    """A mesh of one axis."""
    return Mesh(np.array(jax.devices()[:blocks]), ("stage",))


def batches_of(schedule, blocks, ticks=40):
    """So many that the table has at least these ticks."""
    count = schedule.on_the_way(blocks) + 1
    while schedule.table(blocks, count).ticks < ticks:
        count += 1
    return data(count, ROWS * schedule.parts)


def assert_same(ours, theirs):
    """Every leaf, to the last bit."""
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def assert_close(ours, theirs, atol=1e-6):
    """Every leaf, up to rounding."""
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), atol=atol)
