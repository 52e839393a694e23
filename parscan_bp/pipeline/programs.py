"""The compiled programs of one block: forward, linearise, pull back, update."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from parscan_bp.pipeline.blocks import Block
from parscan_bp.types import Array, PyTree

Loss = Callable[[PyTree, PyTree], Array]


class Optimiser(Protocol):
    """What `optax.GradientTransformation` is."""

    @property
    def init(self) -> Callable[..., Any]: ...

    @property
    def update(self) -> Callable[..., tuple[Any, Any]]: ...

    def __hash__(self) -> int: ...


class Reads(NamedTuple):
    """All that a pass of a block reads besides its weights.

    Attributes:
      x: the input.
      state: the block's state, as the forward pass of this part found it.
      key: random key of this part of this batch.
      labels: of this part of the batch, at the last block, whose value is the loss; else ``None``.
    """

    x: PyTree
    state: PyTree
    key: Array
    labels: PyTree


class Programs(NamedTuple):
    """What is compiled of a block.

    Attributes:
      forward: (weights, reads) -> (y, new state).
      linearise: (weights, reads) -> (y, new state, pull), pull the linear map that is kept.
      pull: (pull, ct) -> (gradient of the weights, of the input; ``None`` at the first block).
      pull_input, pull_weights: (pull, ct) -> one of them.
      replay: (weights, reads, ct) -> what ``pull`` returns of a new linearisation.
    """

    forward: Callable[..., Any]
    linearise: Callable[..., Any]
    pull: Callable[..., Any]
    pull_input: Callable[..., Any]
    pull_weights: Callable[..., Any]
    replay: Callable[..., Any]


@functools.lru_cache(maxsize=128)
def programs_of(block: Block, loss: Loss | None, first: bool) -> Programs:
    """The programs of a block.

    Args:
      block: the block.
      loss: of the last block, whose value is the scalar loss(y, labels).
      first: whether nothing below waits for the gradient of the input, which may be of integers.
    """

    def forward(weights: PyTree, reads: Reads) -> tuple[PyTree, PyTree]:
        y, state = block.apply(weights, reads.state, reads.x, reads.key)
        return (y if loss is None else loss(y, reads.labels)), state

    def linearise(weights: PyTree, reads: Reads) -> tuple[PyTree, PyTree, Any]:
        if first:
            y, pull, state = jax.vjp(lambda w: forward(w, reads), weights, has_aux=True)
        else:
            y, pull, state = jax.vjp(
                lambda w, x: forward(w, reads._replace(x=x)), weights, reads.x, has_aux=True
            )
        return y, state, pull

    def pull(linear: Any, ct: PyTree) -> tuple[PyTree, PyTree]:
        cts = linear(ct)
        return cts[0], None if first else cts[1]

    return Programs(
        forward=jax.jit(forward),
        linearise=jax.jit(linearise),
        pull=jax.jit(pull),
        pull_input=jax.jit(lambda linear, ct: pull(linear, ct)[1]),
        pull_weights=jax.jit(lambda linear, ct: pull(linear, ct)[0]),
        replay=jax.jit(lambda weights, reads, ct: pull(linearise(weights, reads)[2], ct)),
    )


@functools.lru_cache(maxsize=64)
def update_of(optimiser: Optimiser) -> Callable[..., tuple[PyTree, PyTree]]:
    """(gradient, state, weights, what else it takes) -> (new weights, new state), compiled.

    In two programs: in one, XLA may round a product and the sum of weights and updates at once, and
    that would not be what an optimiser does whose updates come out of a branch, such as `stale`.
    """
    own = jax.jit(optimiser.update)

    def update(
        gradient: PyTree, state: PyTree, weights: PyTree, *more: PyTree
    ) -> tuple[PyTree, PyTree]:
        updates, state = own(gradient, state, weights, *more)
        return apply_updates(weights, updates), state

    return update


@functools.lru_cache(maxsize=64)
def compiled(function: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """The same one for the same function, so that it is compiled once."""
    return jax.jit(function)


@jax.jit
def apply_updates(params: PyTree, updates: PyTree) -> PyTree:
    """``params + updates`` in the dtypes of the parameters, as `optax.apply_updates`."""
    return jax.tree.map(lambda p, u: jnp.asarray(p + u, jnp.asarray(p).dtype), params, updates)


@jax.jit
def random_key_of(key: Array, block: int, batch: int, part: int) -> Array:
    """The random key of a block for a part of a batch."""
    for number in (block, batch, part):
        key = jax.random.fold_in(key, number)
    return key


def is_float(leaf: Any) -> bool:
    """Whether a leaf of a state is a statistic; keys and counters are none."""
    return jnp.issubdtype(leaf.dtype, jnp.floating)
