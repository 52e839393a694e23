"""The optimiser's state of a block, and whether the optimiser's update is one of a block."""

from __future__ import annotations

import re
from collections.abc import Sequence

import jax
import numpy as np

from parscan_bp.pipeline.fitting import listed
from parscan_bp.pipeline.programs import Optimiser
from parscan_bp.types import PyTree

_MISSING = re.compile(r"missing \d+ required (?:keyword-only |positional )?arguments?: (.+)")


def start_state(
    optimiser: Optimiser, block: int | None, params: PyTree, given: PyTree = None
) -> PyTree:
    """The optimiser's state at the start: the one that is given, or else a fresh one.

    Args:
      optimiser: a pair (init, update).
      block: whose state it is, for errors; ``None`` if that of all blocks.
      params: of the block, or of all in a list.
      given: the state; ``None`` if it is to be made.

    Raises:
      TypeError: if `update` wants more than gradient, state and parameters.
      ValueError: if `init` or `update` does not take those of the block, or updates are not of the
        parameters' structure and shapes.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> from parscan_bp.pipeline.optimiser_state import start_state
      >>> try:
      ...     start_state(optax.lbfgs(), 0, jnp.ones(2))
      ... except TypeError as error:
      ...     print(str(error).partition(";")[0])
      optimiser: its update wants 'value', 'grad', and 'value_fn' beside gradient, state and params
    """
    whose = "all blocks" if block is None else f"block {block}"
    try:
        state = optimiser.init(params) if given is None else given
        updates, _ = jax.eval_shape(optimiser.update, params, state, params)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if missing := missing_arguments(error):
            raise TypeError(
                f"optimiser: its update wants {missing} beside gradient, state and params; a "
                "pipeline has nothing else: an optimiser of these three, without a line search, "
                "is wanted"
            ) from error
        own = "" if given is None else f" and optimiser_states[{block or 0}]"
        raise ValueError(
            f"optimiser: it does not take the params{own} of {whose}, {listed(params)}: {error}"
        ) from error
    if _shapes(updates) != _shapes(params):
        raise ValueError(
            f"optimiser: of the params of {whose}, {listed(params)}, its update makes "
            f"{listed(updates)}; the same structure and shapes are wanted"
        )
    return state


def start_states(
    optimisers: Sequence[Optimiser],
    params: Sequence[PyTree],
    given: Sequence[PyTree] | None,
    together: bool,
) -> list[PyTree]:
    """Of each block that with which it begins.

    Args:
      optimisers: of each block a pair (init, update).
      params: of each block.
      given: its state; ``None`` if they are to be made.
      together: whether it updates all blocks in one step; then block 0 has the state of all, and
        the others have ().

    Raises:
      TypeError, ValueError: as `start_state`; if another block has a state nevertheless.
    """
    own = [None] * len(params) if given is None else given
    if not together:
        return [
            start_state(optimiser, k, *pair)
            for k, (optimiser, *pair) in enumerate(zip(optimisers, params, own, strict=True))
        ]
    for k, state in enumerate(own[1:], start=1):
        if state is not None and jax.tree.leaves(state):
            raise ValueError(
                f"optimiser_states[{k}]: got {listed(state)}; all blocks are updated in one step, "
                "with the state of all in optimiser_states[0], and () is wanted"
            )
    return [start_state(optimisers[0], None, list(params), own[0]), *[()] * (len(params) - 1)]


def missing_arguments(error: Exception) -> str | None:
    """The names of what a function was to be called with, if it was not."""
    found = _MISSING.search(str(error)) if isinstance(error, TypeError) else None
    return found[1] if found else None


def _shapes(tree: PyTree) -> PyTree:
    leaves, structure = jax.tree.flatten(tree)
    return structure, [np.shape(leaf) for leaf in leaves]
