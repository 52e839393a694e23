"""A scan in stretches, of which a derivative stores the carry that enters each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from parscan_bp.originals import lax_scan
from parscan_bp.types import Array

Run = Callable[[Sequence[Array], Sequence[Array], Sequence[Array]], tuple[list, list]]
"""``(consts, init, xs) -> (carry, ys)`` of a number of steps, which lead in xs, and so many equal
parts of them in ys."""


def in_stretches(
    run: Callable[[int], Run], length: int, sizes: Sequence[int], *, reverse: bool
) -> Run:
    """The scan of all steps; see `storage`.

    Args:
      run: ``n`` -> the scan of n steps.
      length: all of them.
      sizes: steps of a stretch, from the outermost level in.
      reverse: whether it begins with the last step.
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
            return each(consts, carry, x)

        cut = left if reverse else length - left
        ends = [x[:cut] for x in xs], [x[cut:] for x in xs]
        first, last = ends[::-1] if reverse else ends
        parts = [x.reshape(whole, size, *x.shape[1:]) for x in first]
        # Inside of a loop nothing is merged with what is made again.
        again = jax.checkpoint(stretch, prevent_cse=False)
        carry, ys = lax_scan(again, list(init), parts, length=whole, reverse=reverse)
        ys = [y.reshape(y.shape[0] * y.shape[1], *y.shape[2:]) for y in ys]
        if rest is None:
            return carry, ys
        carry, more = jax.checkpoint(rest)(consts, carry, last)
        pairs = zip(more, ys, strict=True) if reverse else zip(ys, more, strict=True)
        return carry, [jnp.concatenate(pair) for pair in pairs]

    return call
