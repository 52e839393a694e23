"""What one device holds of a network: a block."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import jax

from parscan_bp.arguments import described
from parscan_bp.chain import chain
from parscan_bp.layers import Layer
from parscan_bp.layers.registry import as_stack
from parscan_bp.types import Array, PyTree

ApplyBlock = Callable[[PyTree, PyTree, PyTree, Array], tuple[PyTree, PyTree]]


@dataclasses.dataclass(frozen=True)
class Block:
    """A piece of a network in training: (y, new state) = apply(params, state, x, key).

    Args:
      apply: function of the block's parameters, which are trained; its state, such as the
        statistics of batch norm, which is not; its input; and a random key, which is the same
        whenever the same part of the same batch passes. x and y are arrays or pytrees, the
        leading axis the batch.

    Raises:
      TypeError: if ``apply`` is no function.

    Example:
      >>> import jax
      >>> import parscan_bp as pb
      >>> def noisy(params, state, x, key):
      ...     return params * x + jax.random.normal(key, x.shape), state
      >>> block = pb.pipeline.Block(noisy)
    """

    apply: ApplyBlock

    def __post_init__(self):
        if not callable(self.apply):
            raise TypeError(
                f"apply: got {described(self.apply)}; a function (params, state, x, key) -> (y, "
                "state) is wanted"
            )


class Network(NamedTuple):
    """Blocks, each with what it begins a run with.

    Attributes:
      blocks: from the data to the loss.
      params, states: of each.
      key: random key of the run.
    """

    blocks: Sequence[Block]
    params: Sequence[PyTree]
    states: Sequence[PyTree]
    key: Array

    def outputs(self, x: PyTree) -> Iterator[tuple[PyTree, PyTree]]:
        """Shapes and dtypes of what each block makes of x, in a row, and of its new state."""
        for block, own, state in zip(self.blocks, self.params, self.states, strict=True):
            x, new = jax.eval_shape(block.apply, own, state, x, self.key)
            yield x, new


def as_block(thing: Any) -> Block:
    """The block that a function or a stack of layers stands for.

    Args:
      thing: a `Block`; a function (params, x) -> y; or a sequence of what `parscan_bp.chain`
        takes, whose derivatives are then a solver's. Modules of Flax have
        `parscan_bp.nnx.as_block` and `parscan_bp.linen.as_block`.

    Raises:
      TypeError: if it is none of these; of a module of Flax, naming what is.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import parscan_bp as pb
      >>> block = pb.pipeline.as_block([pb.layers.Linear(2), jax.nn.relu])
      >>> params = [{"kernel": jnp.ones((3, 2)), "bias": jnp.zeros(2)}, None]
      >>> block.apply(params, (), jnp.ones((1, 3)), None)[0].tolist()
      [[3.0, 3.0]]
    """
    if isinstance(thing, Block):
        return thing
    if kind := _flax_kind(thing):
        raise TypeError(
            f"block: got {described(thing)}; of a module of Flax the block is the first of what "
            f"parscan_bp.{kind}.as_block returns"
        )
    if callable(thing) and not isinstance(thing, type | Layer):
        if not isinstance(thing, Hashable):
            raise TypeError(
                f"block: got {described(thing)}, which has no hash; a function that has one is "
                "wanted, programs are compiled once for it"
            )
        return _of_function(thing)
    if isinstance(thing, Sequence) and not isinstance(thing, str):
        if any(isinstance(each, Block) for each in thing):
            raise TypeError(
                f"block: got {described(thing)} with a Block in it; that Block alone is wanted, "
                "params and states are arguments of their own"
            )
        try:
            return _of_layers(as_stack(thing))
        except TypeError as error:
            raise TypeError(f"block: a sequence stands for the layers of one: {error}") from error
    raise TypeError(
        f"block: got {described(thing)}; a function (params, x) -> y, a sequence of layers or a "
        "Block is wanted"
    )


def _flax_kind(thing: Any) -> str | None:
    """Of which part of Flax a module is, "nnx" or "linen"; Flax need not be there."""
    for base in type(thing).__mro__:
        for kind in ("nnx", "linen"):
            if base.__name__ == "Module" and base.__module__.startswith(f"flax.{kind}."):
                return kind
    return None


# Programs are compiled once for a block: the same function has to be the same block.
@functools.lru_cache(maxsize=128)
def _of_function(function: Callable[[PyTree, PyTree], PyTree]) -> Block:
    return Block(lambda params, state, x, key: (function(params, x), state))


@functools.lru_cache(maxsize=128)
def _of_layers(layers: tuple[Layer, ...]) -> Block:
    return Block(lambda params, state, x, key: (chain(layers, params, x), state))
