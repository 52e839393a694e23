"""Small networks in blocks of different widths, their data, and what a run of them does."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax

import parscan_bp as pb

ROWS, CLASSES = 8, 3

# One optimiser for the same numbers: what updates is compiled once for each shape then.
sgd, adam = functools.cache(optax.sgd), functools.cache(optax.adam)


def _affine(params, x):
    return x @ params["kernel"] + params["bias"]


def hidden(params, x):
    """tanh of an affine map."""
    return jnp.tanh(_affine(params, x))


def head(params, x):
    """An affine map."""
    return _affine(params, x)


def cross_entropy(scores, labels):
    """Mean over the batch."""
    return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()


def placed(tree):
    """On the first device, for good: all executors that have one device then share programs."""
    return jax.device_put(tree, jax.local_devices()[0])


def widths(blocks):
    """Each of its own, so that an array tells its place."""
    return [4, *(5 + k for k in range(blocks - 1)), CLASSES]


def net(blocks, seed=0, dtype=jnp.float32):
    """Blocks and their parameters."""
    rng = np.random.default_rng(seed)
    sizes = widths(blocks)
    params = [
        {
            "kernel": jnp.asarray(rng.normal(size=(a, b)) / np.sqrt(a), dtype),
            "bias": jnp.asarray(0.1 * rng.normal(size=b), dtype),
        }
        for a, b in itertools.pairwise(sizes)
    ]
    return [*[hidden] * (blocks - 1), head], placed(params)


def data(batches, seed=1, dtype=jnp.float32, rows=ROWS):
    """Batches of noise with labels."""
    rng = np.random.default_rng(seed)
    return placed(
        [
            (
                jnp.asarray(rng.normal(size=(rows, 4)), dtype),
                jnp.asarray(rng.integers(CLASSES, size=rows)),
            )
            for _ in range(batches)
        ]
    )


def whole(blocks):
    """The loss of all parameters at once."""

    def loss(params, batch):
        x, labels = batch
        for block, own in zip(blocks, params, strict=True):
            x = block(own, x)
        return cross_entropy(x, labels)

    return loss


class Log:
    """Weights by version and gradients by batch, as a run makes them."""

    def __init__(self, params):
        self.weights = [[own] for own in params]
        self.gradients = {}

    def __call__(self, task, pipe):
        if task.kind == "update":
            assert len(self.weights[task.block]) == task.version + 1
            self.weights[task.block].append(pipe.newest(task.block))
            self.gradients[task.block, task.batch] = pipe.gradient


def run(schedule, blocks=3, batches=30, optimiser=None, dtype=jnp.float32, **options):
    """A run and its log."""
    optimiser = sgd(0.1, momentum=0.9) if optimiser is None else optimiser
    functions, params = net(blocks, dtype=dtype)
    log = Log(params)
    made = pb.pipeline.run(
        functions,
        schedule,
        optimiser,
        cross_entropy,
        params,
        data(batches, dtype=dtype),
        **options,
        executor=pb.pipeline.Simulated(observe=log),
    )
    return made, log


def apart(optimiser):
    """Each block of a list for itself."""
    return optax.GradientTransformation(
        lambda params: [optimiser.init(own) for own in params],
        lambda *trees: list(map(list, zip(*map(optimiser.update, *trees), strict=True))),
    )


def largest_difference(a, b):
    """Over all leaves."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return max(float(np.max(np.abs(np.asarray(x) - np.asarray(y)))) for x, y in pairs)


def same_bits(a, b):
    """Whether two pytrees hold the same numbers."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(np.asarray(x), np.asarray(y)) for x, y in pairs)
