"""The bitstream classification task: data, model, loss.

A stream of class c has bits x_t ~ Bernoulli(0.05 + 0.1 c), c in 0..9. A recurrent cell reads
them one at a time and its last state goes through a linear map and a softmax. The sequence is
as long as one likes and the step small, which is what makes back-propagation the bottleneck.

Source: Wang, Bai, Pekhimenko, BPPSA (MLSys 2020), section 4.1, equations 8 and 9.
"""

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bench.shared import candidates

CLASSES = 10


class Batch(NamedTuple):
    """Inputs of shape (T, B, C), float32, here bits with C = 1, and labels of shape (B,)."""

    inputs: jax.Array
    labels: jax.Array


class Streams(NamedTuple):
    """Bits of shape (samples, T), bool, and their labels, int32."""

    bits: np.ndarray
    labels: np.ndarray

    def batch(self, rows: np.ndarray) -> Batch:
        """The given rows, time first."""
        bits = self.bits[rows].T[:, :, None].astype(np.float32)
        return Batch(jnp.asarray(bits), jnp.asarray(self.labels[rows]))


def draw(rng: np.random.Generator, samples: int, length: int) -> Streams:
    """Draws labelled streams, equation 8 of the paper."""
    labels = rng.integers(CLASSES, size=samples).astype(np.int32)
    bits = np.empty((samples, length), bool)
    # Row by row: the uniform draws of all rows at once would take eight bytes a bit.
    for row, label in zip(bits, labels, strict=True):
        row[:] = rng.random(length, np.float32) < 0.05 + 0.1 * label
    return Streams(bits, labels)


def shuffled(rng: np.random.Generator, samples: int, batch: int) -> Iterator[np.ndarray]:
    """Rows of one batch after another, epoch after epoch; a last incomplete batch is left out."""
    while True:
        order = rng.permutation(samples)
        for start in range(0, samples - batch + 1, batch):
            yield order[start : start + batch]


def init(
    cell: Any, key: jax.Array, hidden: int, inputs: int = 1, classes: int = CLASSES
) -> dict[str, Any]:
    """Parameters of the cell and of the linear map to the logits, float32."""
    for_cell, for_head = jax.random.split(key)
    bound = hidden**-0.5
    head = jax.random.uniform(for_head, (hidden, classes), jnp.float32, -bound, bound)
    recurrent = cell.init(for_cell, inputs, hidden, jnp.float32)
    return {"cell": recurrent, "head": head, "bias": jnp.zeros(classes, jnp.float32)}


def logits(
    cell: Any, scan: candidates.Scan, params: dict[str, Any], inputs: jax.Array
) -> jax.Array:
    """Class scores from the last state: inputs (T, B, C) -> (B, classes)."""
    hidden = params["head"].shape[0]
    carry = cell.initial_carry((inputs.shape[1],), hidden, inputs.dtype)
    step = functools.partial(cell, params["cell"])
    # The last output and not the last carry: an LSTM's carry is a pair.
    _, outputs = scan(step, carry, inputs)
    return outputs[-1] @ params["head"] + params["bias"]


def loss(cell: Any, scan: candidates.Scan, params: dict[str, Any], batch: Batch) -> jax.Array:
    """Mean softmax cross entropy."""
    scores = logits(cell, scan, params, batch.inputs)
    return optax.softmax_cross_entropy_with_integer_labels(scores, batch.labels).mean()


def accuracy(cell: Any, params: dict[str, Any], streams: Any) -> float:
    """Share of sequences classified correctly, through plain `jax.lax.scan`."""
    batch = streams.batch(np.arange(len(streams.labels)))
    scores = jax.jit(functools.partial(logits, cell, jax.lax.scan))(params, batch.inputs)
    return float(jnp.mean(jnp.argmax(scores, axis=-1) == batch.labels))
