"""Falling back to the sequential pass: where an entry of a batch needs it, and for nobody else.

Under `jax.vmap`, `lax.cond` runs both of its sides for all. Here the choice is one for the whole
batch, whether any entry needs the pass, and so for batches of batches.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

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
    return _falling_back(other)(needed, made, args)


def _falling_back(other: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """`fall_back` as a function of arrays; ``needed`` has the axes that were mapped so far."""

    @custom_vmap
    def choose(needed, made, args):
        def again():
            return jax.tree.map(lambda a, b: _where(needed, a, b), other(*args), made)

        return lax.cond(jnp.any(needed), again, lambda: made)

    @choose.def_vmap
    def mapped(size, in_batched, needed, made, args):
        batched, made_batched, args_batched = in_batched

        def spread(a, has_axis):
            return a if has_axis else jnp.broadcast_to(a, (size, *jnp.shape(a)))

        made = jax.tree.map(spread, made, made_batched)
        axes = jax.tree.map(lambda has_axis: 0 if has_axis else None, args_batched)
        of_all = jax.vmap(other, in_axes=tuple(axes), out_axes=0, axis_size=size)
        chosen = _falling_back(of_all)(spread(needed, batched), made, args)
        return chosen, jax.tree.map(lambda _: True, chosen)

    return choose


def _where(flags: Array, yes: Array, no: Array) -> Array:
    """Chosen by the leading axes, which are those of the flags."""
    flags = flags.reshape(flags.shape + (1,) * (jnp.ndim(yes) - flags.ndim))
    return jnp.where(flags, yes, no)
