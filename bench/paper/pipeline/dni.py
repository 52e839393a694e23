"""Decoupled neural interfaces: blocks that are trained by gradients which they foresee.

Block k < K passes its output h_k on, and moves at once by S_k(h_k), a guess of the gradient of the
loss with respect to h_k. Block k + 1 makes that gradient from the guess of its own, or from the
loss, and S_k learns from it. There is no backward pass through all blocks.

Source: Jaderberg et al., Decoupled neural interfaces using synthetic gradients (2017): synthesisers
of one linear map that begins at zero; a baseline of DSP's figure 3.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bench.paper.pipeline import networks, tasks
from bench.shared.bench import Options, Result


class Weights(NamedTuple):
    """Of the blocks, and of the synthesisers between them."""

    blocks: list[Any]
    guesses: list[jax.Array]


def gradients(
    network: networks.Network, weights: Weights, states: Sequence[Any], x: Any, labels: Any
) -> tuple[jax.Array, Weights]:
    """The loss, and by what blocks and synthesisers move.

    A synthesiser's is that of half the squared error of its guess, summed over a row as the
    gradient is, which is of a mean over the batch.
    """
    inputs, pulls = [x], []
    for block, own, state in zip(network.blocks, weights.blocks, states, strict=True):

        def run(own: Any, h: Any, block: Any = block, state: Any = state) -> Any:
            return block.apply(own, state, h, jax.random.key(0))[0]

        y, pull = jax.vjp(run, own, inputs[-1])
        inputs.append(y)
        pulls.append(pull)
    loss, ct = jax.value_and_grad(networks.loss)(inputs[-1], labels)
    cts = [*(_guess(s, h) for s, h in zip(weights.guesses, inputs[1:-1], strict=True)), ct]
    found = [pull(ct) for pull, ct in zip(pulls, cts, strict=True)]
    rows = zip(inputs[1:-1], cts[:-1], found[1:], strict=True)
    # Gradients of a mean are 1 / B of a row's: guesses, and their errors, are of B times that.
    wrong = [_design(h).T @ (guess - true) for h, guess, (_, true) in rows]
    return loss, Weights([own for own, _ in found], wrong)


def _design(h: jax.Array) -> jax.Array:
    return jnp.concatenate([h, jnp.ones_like(h[:, :1])], -1)


def _guess(guess: jax.Array, h: jax.Array) -> jax.Array:
    """(B, units): a linear map of the output, for the gradient of a mean over the batch."""
    return _design(h) @ guess / len(h)


def train(task: tasks.Task, blocks: int, optimiser: Any, seed: int, options: Options) -> Result:
    """As `accuracy.run`: losses and test accuracies by epoch."""
    network = task.network(blocks)
    params, states = network.init(seed)
    epoch = len(task.train.labels) // options.batch
    batches = tasks.Batches(task.train, options.batch, epoch * options.epochs, seed)

    @jax.jit
    def step(weights: Weights, moments: Any, x: Any, labels: Any) -> Any:
        loss, found = gradients(network, weights, states, x, labels)
        updates, moments = optimiser.update(found, moments, weights)
        return loss, optax.apply_updates(weights, updates), moments

    h, guesses = batches[0][0], []
    for block, own, state in zip(network.blocks[:-1], params, states, strict=False):
        h, _ = block.apply(own, state, h, jax.random.key(0))
        guesses.append(jnp.zeros((h.shape[-1] + 1, h.shape[-1])))
    weights = Weights(params, guesses)
    moments, losses, accuracies = optimiser.init(weights), [], []
    for n in range(len(batches)):
        loss, weights, moments = step(weights, moments, *batches[n])
        losses.append(float(loss))
        if (n + 1) % epoch == 0:
            accuracies.append(task.accuracy(network, weights.blocks, states))
    means = np.asarray(losses).reshape(options.epochs, epoch).mean(1)
    finite = [float(value) if np.isfinite(value) else None for value in means]
    return {"losses": finite, "accuracies": accuracies}
