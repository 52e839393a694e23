"""A system in stretches of steps: their size, and what is collected of them."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax

from parscan_bp.measured import measured
from parscan_bp.system import System, zeros_of_shape
from parscan_bp.trees import add, eval_shape, nbytes, stretch, write_stretch
from parscan_bp.types import PyTree


def collect_in_chunks(
    system: System, shown: PyTree, aux: PyTree, last: PyTree, chunk: int | None = None
) -> tuple[PyTree, PyTree]:
    """`System.collect` over all steps, a chunk at a time, with the shown vectors known."""
    n = system.length
    size = min(chunk or default_chunk(n, nbytes(shown)), n)

    def visit(carry, start, size):
        summed, out = carry
        # The state that leaves a stretch is the one that enters the step after it.
        at = start - 1 if system.backward else start + size
        beyond = at < 0 if system.backward else at >= n
        following = jax.tree.map(lambda a: a[jnp.clip(at, 0, n - 1)], shown)
        state = jax.tree.map(functools.partial(jnp.where, beyond), last, following)
        here, beside = stretch((shown, aux), start, size)
        more, part = system.collect(start, here, state, beside)
        return add(summed, more), write_stretch(out, part, start)

    part, beside = eval_shape(lambda: stretch((shown, aux), 0, size))
    carry = accumulators(system, part, last, beside)
    return in_chunks(n, size, system.backward, visit, carry)


def accumulators(
    system: System, shown: PyTree, state: PyTree, aux: PyTree = None
) -> tuple[PyTree, PyTree]:
    """Zeros for the summed and stacked contributions of `System.collect`."""
    summed, out = eval_shape(functools.partial(system.collect, 0), shown, state, aux)
    out = eval_shape(
        lambda out: jax.tree.map(
            lambda a: jnp.broadcast_to(a[:1], (system.length, *a.shape[1:])), out
        ),
        out,
    )
    return zeros_of_shape(summed), zeros_of_shape(out)


def in_chunks(n: int, size: int, backward: bool, visit, carry):
    """Folds ``visit(carry, start, size)`` over the stretches of n steps, in traversal order.

    All stretches but the last traversed have ``size`` steps; compiled size does not
    depend on n.
    """
    whole, rest = divmod(n, size)
    first = rest if backward else 0

    def step(k, carry):
        index = whole - 1 - k if backward else k
        return visit(carry, first + index * size, size)

    if whole == 1:
        carry = visit(carry, first, size)
    elif whole:
        carry = lax.fori_loop(0, whole, step, carry)
    if rest:
        carry = visit(carry, 0 if backward else whole * size, rest)
    return carry


def chunk_bytes() -> tuple[int, int]:
    """Least and most that the linearised steps of one chunk take, where there are enough."""
    held = measured("cpu")["chunk"]
    return held["least"], held["most"]


def default_chunk(n: int, total_bytes: int, bounds: tuple[int, int] | None = None) -> int:
    """Steps per chunk: a tenth of all, within ``bounds``, in bytes, or `chunk_bytes`.

    Large chunks make efficient products, small ones stay in cache and keep the memory near
    that of the stored carries. A divisor of n is taken where there is one nearby: no stretch
    is left over then, and the program has one copy of the step fewer.
    """
    least, most = bounds or chunk_bytes()
    target = min(max(total_bytes // 10, least), most)
    size = max(1, min(n, n * target // max(total_bytes, 1)))
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    nearest = max(
        (d for pair in ((d, n // d) for d in small) for d in pair if d <= size), default=1
    )
    return nearest if 2 * nearest > size else size
