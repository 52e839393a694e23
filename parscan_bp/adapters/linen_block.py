"""A module of `flax.linen` as a block of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from parscan_bp.arguments import described
from parscan_bp.pipeline import Block
from parscan_bp.types import Array, PyTree

try:
    import flax.linen as nn
except ImportError as error:
    raise ImportError(
        "parscan_bp.linen needs Flax, which is not installed: pip install 'parscan_bp[flax]'"
    ) from error


def as_block(
    module: nn.Module,
    variables: Mapping[str, PyTree],
    *,
    rngs: Sequence[str] = ("dropout",),
    **options: Any,
) -> tuple[Block, PyTree, PyTree]:
    """The block of a module, its parameters and its state, for `parscan_bp.pipeline.run`.

    Trained is the collection "params"; all others are the state, which the module may change.

    Args:
      module: that is called with one argument, the output of the block below.
      variables: of the module, as `init` returns them.
      rngs: the streams of random numbers that it draws from, each from the pipeline's key.
      options: keyword arguments of its call, such as ``train=True``.

    Returns:
      (block, params, state).

    Raises:
      TypeError: if ``module`` is none, or ``rngs`` a single name.
      ValueError: if ``variables`` has no "params".

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import flax.linen as nn
      >>> import parscan_bp.linen
      >>> module, x = nn.Dense(3), jnp.ones((1, 2))
      >>> variables = module.init(jax.random.key(0), x)
      >>> block, params, state = parscan_bp.linen.as_block(module, variables)
      >>> y, _ = block.apply(params, state, x, jax.random.key(1))
      >>> bool((y == module.apply(variables, x)).all())
      True
    """
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"module: got {described(module)}; a flax.linen.Module is wanted. Functions and layers "
            "are blocks as they are, see parscan_bp.pipeline.as_block"
        )
    if isinstance(rngs, str):
        raise TypeError(f"rngs: got {described(rngs)}; a sequence of names is wanted: ({rngs!r},)")
    if not isinstance(variables, Mapping) or "params" not in variables:
        raise ValueError(
            f"variables: got {described(variables)}; those of the module's init, with 'params', "
            "are wanted"
        )
    state = {name: value for name, value in variables.items() if name != "params"}

    def apply(params: PyTree, state: PyTree, x: PyTree, key: Array) -> tuple[PyTree, PyTree]:
        keys = dict(zip(rngs, jax.random.split(key, len(rngs)), strict=True)) if rngs else {}
        y, changed = module.apply(
            {"params": params, **state}, x, rngs=keys, mutable=list(state), **options
        )
        return y, {**state, **changed}

    return Block(apply), variables["params"], state
