"""Initial parameters of a stack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from parscan_bp.arguments import as_int, described
from parscan_bp.layers.registry import as_stack
from parscan_bp.layers.stack import init_stack
from parscan_bp.types import Array, PyTree


def init(layers: Sequence[Any], key: Array, features: tuple[int, ...], dtype=float) -> list[PyTree]:
    """Parameters of every layer of a stack.

    Args:
      layers: what `as_layer` takes; each layer takes what the one before it makes.
      key: random key.
      features: shape of one input, without the batch axis.
      dtype: of the parameters.

    Returns:
      A list with the parameters of each layer, ``None`` for a layer without.

    Raises:
      TypeError, ValueError: if ``features`` is no sequence of positive integers.

    Example:
      >>> import jax
      >>> from parscan_bp.layers import Linear, init
      >>> params = init([Linear(8), jax.nn.relu, Linear(2)], jax.random.key(0), (3,))
      >>> [None if p is None else p["kernel"].shape for p in params]
      [(3, 8), None, (8, 2)]
    """
    if not isinstance(features, Sequence) or isinstance(features, str):
        raise TypeError(f"features: got {described(features)}; a tuple such as (3,) is wanted")
    for k, size in enumerate(features):
        as_int(f"features[{k}]", size)
    return init_stack(as_stack(layers), key, features, dtype)
