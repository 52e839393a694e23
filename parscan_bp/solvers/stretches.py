"""A stretch of steps, one after the other: what solvers by products alone are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from parscan_bp.measured import measured
from parscan_bp.operators import Operator
from parscan_bp.originals import lax_scan
from parscan_bp.solvers.collect import chunk_bytes, default_chunk
from parscan_bp.system import Block, System
from parscan_bp.trees import add
from parscan_bp.types import Array, PyTree


def sweep_stretch(
    system: System,
    state: PyTree,
    start: int | Array,
    size: int,
    *,
    homogeneous: bool = False,
    unroll: int = 1,
    scan: Callable = lax_scan,
) -> tuple[PyTree, PyTree, Any]:
    """Sequential substitution over the steps ``start .. start + size``, linearised as one batch.

    Args:
      system: the system.
      state: the state that enters the stretch.
      start, size: the stretch; ``start`` may be traced.
      homogeneous: whether the right-hand side is taken to be zero. What comes out is then what
        ``state``, added to the one that enters, adds to the states and the shown vectors.
      unroll: steps per iteration of the loop.
      scan: runs it, as `jax.lax.scan`.

    Returns:
      The state that leaves it, the vectors shown in it, stacked, and what the maps made beside
      their products.
    """
    block = system.block(start, size)
    if homogeneous:
        block = Block(block.operator)
    leaves, rebuild = block.operator.unstack()

    def step(state, t):
        leaves, entering, leaving = t
        shown = add(entering, state)
        out, aux = rebuild(leaves).matvec_and_aux(shown)
        return add(out, leaving), (shown, aux)

    state, (shown, aux) = scan(
        step,
        state,
        (leaves, block.entering, block.leaving),
        length=size,
        reverse=system.backward,
        unroll=unroll,
    )
    return state, shown, aux


def steps_per_chunk(n: int, step: int, sums: int, *, scattered: bool = False) -> int:
    """Steps that are linearised at a time where they are swept one after the other.

    A tenth of all, but 128 kB to 1 MB of linearised steps, and not less than half of what is
    summed; all of them rather than one chunk and less than half of one.

    Args:
      n: all steps.
      step: bytes of one linearised step.
      sums: bytes of what is summed over the chunks, and so read and written once in each.
      scattered: whether steps are, see `is_scattered`: it is a few steps then.
    """
    least, most = chunk_bytes()
    if scattered:
        least = most = measured("cpu")["scattered"]["steps"] * step
    size = default_chunk(n, n * step, (max(least, sums // 2), max(most, sums // 2)))
    return n if 2 * n < 3 * size else size


def is_scattered(state: PyTree, linearised: PyTree) -> bool:
    """Whether steps carry few numbers in many leaves.

    XLA has an operation for each leaf. Of a few steps they are as fast as of many, the loop around
    them may become a single kernel, and no time goes to compiling each for long vectors.

    Args:
      state: what is carried.
      linearised: one step.
    """
    held = measured("cpu")["scattered"]
    numbers = max((a.size for a in jax.tree.leaves(linearised)), default=0)
    return len(jax.tree.leaves(state)) >= held["leaves"] and numbers <= held["numbers"]


def sweep_layers(operators: Sequence[Operator], g: Sequence[Array | None]) -> list[Any]:
    """lambda_n = g_n, lambda_t = g_t + A_t lambda_{t+1} for operators of different shapes."""
    out: list[Any] = [g[-1]]
    for a, added in zip(reversed(operators), reversed(g[:-1]), strict=True):
        out.append(add(added, a.matvec(out[-1])))
    return out[::-1]
