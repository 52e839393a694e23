"""A module of `flax.nnx` as a block of a pipeline."""

from __future__ import annotations

from typing import Any

from parscan_bp.arguments import described
from parscan_bp.pipeline import Block
from parscan_bp.types import PyTree

try:
    from flax import nnx
except ImportError as error:
    raise ImportError(
        "parscan_bp.nnx needs Flax, which is not installed: pip install 'parscan_bp[flax]'"
    ) from error


def as_block(module: nnx.Module) -> tuple[Block, PyTree, PyTree]:
    """The block of a module, its parameters and its state, for `parscan_bp.pipeline.run`.

    Trained is what is of the type `nnx.Param`; all else is the state: statistics of batch norm,
    and the streams of random numbers, which stand in the module itself. Dropout and batch norm
    do what the module's own attributes say (`module.train()`).

    Args:
      module: that is called with one argument, the output of the block below.

    Returns:
      (block, params, state). Put trained ones back with ``nnx.update(module, params, state)``.

    Raises:
      TypeError: if ``module`` is none.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> import parscan_bp.nnx
      >>> module = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
      >>> block, params, state = parscan_bp.nnx.as_block(module)
      >>> y, _ = block.apply(params, state, jnp.ones((1, 2)), None)
      >>> bool((y == module(jnp.ones((1, 2)))).all())
      True
    """
    if not isinstance(module, nnx.Module):
        raise TypeError(
            f"module: got {described(module)}; a flax.nnx.Module is wanted. Functions and layers "
            "are blocks as they are, see parscan_bp.pipeline.as_block"
        )
    graphdef, params, state = _split(module)

    def apply(params: PyTree, state: PyTree, x: PyTree, key) -> tuple[PyTree, PyTree]:
        del key  # a module has its own streams of random numbers
        # A call moves the variables themselves: those that are given must stay what they are.
        module = nnx.merge(graphdef, params, state, copy=True)
        y = module(x)
        return y, _split(module)[2]

    return Block(apply), params, state


def _split(module: nnx.Module) -> Any:
    return nnx.split(module, nnx.Param, ...)
