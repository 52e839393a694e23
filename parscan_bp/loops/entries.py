"""What the entries of a `jax.vmap` have in common."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

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


def own_or_of_another(own: Array, value: Array) -> Array:
    """The value where ``own``, else that of another entry where it is; it has no derivative.

    Of what all entries of a `jax.vmap` share there is one, and it stays one.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> jax.vmap(own_or_of_another)(jnp.array([False, True]), jnp.array([0.0, 5.0])).tolist()
      [5.0, 5.0]
    """
    keeps, other = _of_another(own, lax.stop_gradient(value))
    return lax.select(keeps, value, lax.stop_gradient(other))


@jax.custom_batching.custom_vmap
def _of_another(own: Array, value: Array) -> tuple[Array, Array]:
    """Where the value is kept, in its shape; and that of another entry."""
    return jnp.ones(value.shape, bool), value


@_of_another.def_vmap
def _of_another_mapped(size, is_mapped, own, value):
    of_own, of_value = is_mapped
    if not of_value:  # one for all of them: it is kept if any entry keeps it
        return _of_another(jnp.any(own, 0) if of_own else own, value), (False, False)
    if not of_own:
        return _of_another(own, value), (True, True)
    keeps = jnp.broadcast_to(own.reshape(size, *[1] * (value.ndim - 1)), value.shape)
    filled = lax.select(keeps, value, jnp.broadcast_to(value[jnp.argmax(own)], value.shape))
    again, other = _of_another(jnp.any(own, 0), filled)
    return (keeps & again, other), (True, True)
