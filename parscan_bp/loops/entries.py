"""What the entries of a `jax.vmap` have in common."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from parscan_bp.types import Array


@jax.custom_batching.custom_vmap
def most_of_entries(count: Array) -> Array:
    """The largest of the integers that the entries of all `jax.vmap` around have; it has no axis.

    What branches on it stays a branch: on a value of each entry it would be a selection, of which
    both sides run.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> jax.vmap(most_of_entries, out_axes=None)(jnp.array([3, 5])).item()
      5
    """
    return count


@most_of_entries.def_vmap
def _mapped(size, is_mapped, count):
    return most_of_entries(jnp.max(count, 0)), False
