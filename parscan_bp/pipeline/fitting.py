"""Whether blocks, loss and data fit together, from shapes alone, before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from parscan_bp.arguments import described
from parscan_bp.pipeline.blocks import Block
from parscan_bp.pipeline.programs import Loss
from parscan_bp.types import Array, PyTree


def check_batch(number: int, batch: Any, parts: int, name: str) -> list[tuple[PyTree, PyTree]]:
    """The parts of a batch, each a pair of data and labels.

    Raises:
      TypeError: if it is no pair.
      ValueError: if its leading axis is not a multiple of the parts.
    """
    if not isinstance(batch, tuple) or len(batch) != 2:
        raise TypeError(f"batches[{number}]: got {described(batch)}; a pair (x, labels) is wanted")
    rows = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(batch)}
    if parts == 1:
        return [batch]
    if len(rows) != 1 or not min(rows) or min(rows)[0] % parts:
        raise ValueError(
            f"batches[{number}]: got leading axes of {sorted(rows)}; {name} divides every batch "
            f"into {parts} parts: the same multiple of {parts} is wanted for all arrays"
        )
    size = min(rows)[0] // parts
    cut = lambda i: jax.tree.map(lambda a: a[i * size : (i + 1) * size], batch)  # noqa: E731
    return [cut(i) for i in range(parts)]


def check_fit(
    blocks: Sequence[Block],
    loss: Loss,
    batch: tuple[PyTree, PyTree],
    params: Sequence[PyTree],
    states: Sequence[PyTree],
    key: Array,
) -> None:
    """Raises `ValueError` naming the block that does not take what the one below makes.

    Also if a block changes the shapes of its state, or the loss is no real scalar.
    """
    x, labels = batch
    for k, block in enumerate(blocks):
        try:
            y, state = jax.eval_shape(block.apply, params[k], states[k], x, key)
        # Whatever a block of the caller's raises.
        except Exception as error:
            below = f"what blocks[{k - 1}] makes" if k else "the data"
            raise ValueError(
                f"blocks[{k}]: it does not take {below}, of shape {_shapes(x)}: {error}"
            ) from error
        if _types(state) != _types(states[k]):
            raise ValueError(
                f"blocks[{k}]: its state of shape {_shapes(states[k])} becomes one of shape "
                f"{_shapes(state)}, or of other dtypes or names; the same is wanted"
            )
        x = y
    value = jax.eval_shape(loss, x, labels)
    leaves = jax.tree.leaves(value)
    if len(leaves) != 1 or leaves[0].shape or not jnp.issubdtype(leaves[0].dtype, jnp.floating):
        raise ValueError(f"loss: makes {_shapes(value)}; a real scalar is wanted")


def _types(tree: PyTree) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(np.shape(leaf), _dtype(leaf)) for leaf in leaves]


def _dtype(leaf: Any) -> Any:
    """Of keys, too, which have no result type."""
    return leaf.dtype if hasattr(leaf, "dtype") else jnp.result_type(leaf)


def _shapes(tree: PyTree) -> str:
    shapes = [str(np.shape(leaf)) for leaf in jax.tree.leaves(tree)]
    return shapes[0] if len(shapes) == 1 else f"({', '.join(shapes)})"
