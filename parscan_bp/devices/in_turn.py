"""A run on one device of a line after the other."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from parscan_bp.devices.order import DeviceOrder, kinds_of_keys, with_keys
from parscan_bp.trees import eval_shape
from parscan_bp.types import PyTree


def in_turn(
    line: DeviceOrder,
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

    kinds: list[PyTree] = []

    def numbers(entering):
        made = run(entering)
        kinds[:] = [kinds_of_keys(made)]
        return line.numbers(made)

    # What branches and the loop hand on are numbers: the types of keys do not say that they vary.
    def turn(k, entering, results):
        own = lambda: numbers(with_keys(entering, kinds_of_keys(first)))  # noqa: E731
        return lax.cond(line.is_at(k), own, lambda: results)

    def step(k, both):
        entering, results = both
        results = turn(k, entering, results)
        left = with_keys(results[0], kinds[0][0])
        arrived, here = line.numbers(join(first, line.shift(left))), line.is_at(k + 1)
        return jax.tree.map(lambda a, b: jnp.where(here, a, b), arrived, entering), results

    nothing = jax.tree.map(jnp.zeros_like, eval_shape(numbers, first))
    start = line.numbers(first), line.varying(nothing)
    entering, results = lax.fori_loop(0, line.size - 1, step, start)
    return with_keys(turn(line.size - 1, entering, results), kinds[0])
