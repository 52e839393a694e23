"""Falling back to the sequential pass: where an entry of a batch needs it, and for nobody else.

Under `jax.vmap`, `lax.cond` runs both of its sides for all. Here the choice is one for the whole
batch, whether any entry needs the pass, and so for batches of batches.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from parscan_bp.primitives.mapping import largest_of_mapped
from parscan_bp.types import Array, PyTree


def fall_back(needed: Array, made: PyTree, other: Callable[..., PyTree], *args: PyTree) -> PyTree:
    """``other(*args)`` where it is needed, else what was made.

    Args:
      needed: a bool; under `jax.vmap` one for each entry.
      made: what there is.
      other: makes a pytree of the same types, of arguments only: it closes over no traced values.
      *args: its arguments.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> f = lambda x: fall_back(x < 0, x, lambda x: -x, x)
      >>> jax.vmap(f)(jnp.array([1.0, -2.0])).tolist()
      [1.0, 2.0]
    """

    def again():
        return jax.tree.map(lambda a, b: jnp.where(needed, a, b), other(*args), made)

    return lax.cond(largest_of_mapped(needed), again, lambda: made)
