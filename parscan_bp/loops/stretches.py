"""A loop of a known number of steps, run again as a nest of scans; see `nest`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import JaxprEqn

from parscan_bp.jaxprs.read import names_axis
from parscan_bp.jaxprs.replay import evaluate
from parscan_bp.loops.entries import most_of_entries, own_or_of_another
from parscan_bp.loops.nest import Group, Nest
from parscan_bp.originals import lax_scan
from parscan_bp.types import Array

MaskedStep = Callable[[list[Array], Array], tuple[list[Array], None]]
"""``(carry, t) -> (carry, None)``: step t of a loop, which changes nothing behind its end."""


def stepped_by(equation: JaxprEqn, args: Sequence[Array], steps: Array) -> tuple[MaskedStep, list]:
    """The masked step of a loop of so many steps, and the first carry, keys as `key_data`.

    Args:
      equation: the traced loop.
      args: what its body closes over, and the first carry.
      steps: how many.
    """
    body, count = equation.params["body_jaxpr"], equation.params["body_nconsts"]
    args = [key_data(v) for v in args]
    # An entry of a vmap that never runs is shown another one that does, where each has its own.
    shown = [own_or_of_another(steps > 0, v) for v in args]
    consts, behind = shown[:count], lax.stop_gradient(shown[count:])

    def step(carry):
        values = zip(body.in_avals, [*consts, *carry], strict=True)
        made = evaluate(body, [_key_of(v, aval) for aval, v in values])
        return list(map(key_data, made))

    coupled = any(map(names_axis, body.effects))
    return _masked(step, behind, steps, coupled=coupled), args[count:]


def key_data(v: Array) -> Array:
    """The numbers of a key: jax 0.10 has no zeros of keys, see `_run_group`."""
    return jax.random.key_data(v) if is_key(v) else v


def _key_of(v: Array, aval: Any) -> Array:
    """The key of these numbers, if it is one by its type."""
    return jax.random.wrap_key_data(v, impl=aval.dtype) if is_key(aval) else v


def is_key(v: Any) -> bool:
    """Whether it is a random key, or the type of one."""
    return jnp.issubdtype(v.dtype, jax.dtypes.prng_key)


def _masked(step: Callable, behind: list[Array], steps: Array, *, coupled: bool) -> MaskedStep:
    """The step of a loop with its mask.

    Behind the end it is given a first carry at which a loop has run it: at the last one it may be
    infinite, or have an infinite slope. A step that is coupled to other entries of a mapped axis
    shows them the carry it has.
    """

    def select(runs, yes, no):
        return [lax.select(runs, a, b) for a, b in zip(yes, no, strict=True)]

    def call(carry, t):
        runs = t < steps
        seen = carry if coupled else select(runs, carry, behind)
        return select(runs, step(seen), carry), None

    return call


def run_nest(
    nest: Nest, step: MaskedStep, init: list[Array], steps: Array, scan: Callable
) -> list[Array]:
    """The carry after so many steps.

    Args:
      nest: how it is taken apart.
      step: the masked one.
      init: the first carry.
      steps: how many.
      scan: ``(step, carry, xs) -> (carry, ys)``, by which the steps of a stretch are run.
    """
    # No step of any entry is at or behind it; it is the same number for all of them.
    last = most_of_entries(lax.stop_gradient(steps))
    carry = init
    for group in nest.groups:
        carry = _run_group(group, carry, last, step, scan)
    return carry


def _run_group(
    group: Group, carry: list[Array], last: Array, step: MaskedStep, scan: Callable
) -> list[Array]:
    """The carry after a group.

    What a branch hands on to a derivative is made by the other one, too, as zeros. So that this is
    no more than the arguments of a stretch, there is a `jax.checkpoint` inside of each branch; so
    that not all of it is stored, there is one around it. Both together make a stretch again once.
    """

    def stretch(sizes, start, carry):
        size, *inside = sizes
        if not inside:
            run = lambda carry, ts: scan(step, carry, ts)[0]  # noqa: E731
            ts = start + jnp.arange(size, dtype=jnp.int32)
            return jax.checkpoint(run, prevent_cse=False)(carry, ts)
        return stretches(size // inside[0], inside, start, carry)

    def if_reached(sizes):
        def call(start, carry):
            run = lambda carry: stretch(sizes, start, carry)  # noqa: E731
            return lax.cond(start < last, run, lambda carry: carry, carry)

        return call

    def stretches(count, sizes, start, carry):
        again = jax.checkpoint(if_reached(sizes), prevent_cse=False)
        starts = start + sizes[0] * jnp.arange(count, dtype=jnp.int32)
        return lax_scan(lambda carry, at: (again(at, carry), None), carry, starts)[0]

    if group.is_one_stretch:
        return if_reached(group.sizes)(jnp.int32(0), carry)
    if not group.first:
        return stretches(group.count, group.sizes, 0, carry)

    def run(carry):
        return stretches(group.count, group.sizes, group.first, carry)

    return lax.cond(group.first < last, run, lambda carry: carry, carry)
