"""A scan in stretches, of which a derivative stores the carry that enters each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import JaxprEqn

from parscan_bp.jaxprs.read import split_operands
from parscan_bp.originals import lax_scan
from parscan_bp.scan.storage import Storage
from parscan_bp.types import Array

RunStretch = Callable[[Sequence[Array], Sequence[Array], Sequence[Array]], tuple[list, list]]
"""``(consts, init, xs) -> (carry, ys)`` of a number of steps, which lead in xs, and so many equal
parts of them in ys."""


RunFlat = Callable[[Sequence[Array]], tuple[list, list]]
"""``[*consts, *init, *xs] -> (carry, ys)``, likewise."""


def by_stretches(equation: JaxprEqn, part: Callable[[int], RunFlat], storage: Storage) -> RunFlat:
    """The scan of an equation.

    Args:
      equation: the traced scan.
      part: ``n`` -> the scan of n of its steps.
      storage: how it is taken apart.
    """

    def run(n):
        of_steps = part(n)
        return lambda *split: of_steps([a for values in split for a in values])

    how = {"reverse": equation.params["reverse"]}
    how["offload"] = storage.is_offloaded
    whole = in_stretches(run, storage.length, storage.sizes, **how)
    return lambda args: whole(*split_operands(equation, list(map(_strong, args))))


def _strong(a: Array) -> Array:
    """An array of a dtype of its own; so is its cotangent that of what it was made of."""
    return jax.lax.convert_element_type(a, a.dtype) if jax.typeof(a).weak_type else a


_HOST, _DEVICE = jax.memory.Space.Host, jax.memory.Space.Device


def _moved(carry: Sequence[Array], to: Any, src: Any) -> list[Array]:
    """Copies in another memory. Where they come from is where their cotangents go.

    A stretch is given what the host has, so that this is stored. A copy there and back at once, as
    where a stretch runs for the first time, is none in the compiled program. The policies of
    `jax.checkpoint` that offload do not say where a copy comes from, and a gradient of a gradient
    fails.
    """
    return [jax.device_put(leaf, to, src=src) for leaf in carry]


def in_stretches(
    run: Callable[[int], RunStretch],
    length: int,
    sizes: Sequence[int],
    *,
    reverse: bool,
    offload: bool = False,
) -> RunStretch:
    """The scan of all steps; see `storage`.

    Args:
      run: ``n`` -> the scan of n steps.
      length: all of them.
      sizes: steps of a stretch, from the outermost level in.
      reverse: whether it begins with the last step.
      offload: whether the host keeps the carries that enter the outermost stretches.
    """
    if not sizes:
        return run(length)
    size = sizes[0]
    whole, left = divmod(length, size)
    each = in_stretches(run, size, sizes[1:], reverse=reverse)
    inside = [n for n in sizes[1:] if n < left]
    rest = in_stretches(run, left, inside, reverse=reverse) if left else None

    def call(consts, init, xs):
        def stretch(carry, x):
            return each(consts, _moved(carry, _DEVICE, src=_HOST) if offload else carry, x)

        cut = left if reverse else length - left
        ends = [x[:cut] for x in xs], [x[cut:] for x in xs]
        first, last = ends[::-1] if reverse else ends
        parts = [x.reshape(whole, size, *x.shape[1:]) for x in first]
        # Inside of a loop nothing is merged with what is made again.
        again = jax.checkpoint(stretch, prevent_cse=False)

        def from_host(carry, x):
            return again(_moved(carry, _HOST, src=_DEVICE), x)

        of_all = from_host if offload else again
        carry, ys = lax_scan(of_all, list(init), parts, length=whole, reverse=reverse)
        ys = [y.reshape(y.shape[0] * y.shape[1], *y.shape[2:]) for y in ys]
        if rest is None:
            return carry, ys
        carry, more = jax.checkpoint(rest)(consts, carry, last)
        pairs = zip(more, ys, strict=True) if reverse else zip(ys, more, strict=True)
        return carry, [jnp.concatenate(pair) for pair in pairs]

    return call
