"""A run on one device of a line after the other."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from parscan_bp.devices.line import Line
from parscan_bp.trees import eval_shape
from parscan_bp.types import PyTree


def in_turn(
    line: Line,
    run: Callable[[PyTree], tuple],
    first: PyTree,
    join: Callable[[PyTree, PyTree], PyTree],
) -> tuple:
    """The results of ``run`` on each device, which waits for those before it: P - 1 exchanges.

    Args:
      line: the devices.
      run: what enters -> ``(what leaves, ...)``; executed once on each device.
      first: what enters, but for what the device before this one hands on.
      join: ``(first, what arrived) -> what enters`` a device that is not the first one.
    """
    if line.size == 1:
        return run(first)

    def turn(k, entering, results):
        return lax.cond(line.is_at(k), lambda: run(entering), lambda: results)

    def step(k, both):
        entering, results = both
        results = turn(k, entering, results)
        arrived, here = join(first, line.shift(results[0])), line.is_at(k + 1)
        return jax.tree.map(lambda a, b: jnp.where(here, a, b), arrived, entering), results

    nothing = jax.tree.map(jnp.zeros_like, eval_shape(run, first))
    entering, results = lax.fori_loop(0, line.size - 1, step, (first, nothing))
    return turn(line.size - 1, entering, results)
