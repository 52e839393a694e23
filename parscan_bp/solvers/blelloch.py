"""Algorithm 1 of BPPSA: the modified Blelloch scan."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from parscan_bp.arguments import set_ints
from parscan_bp.operators import Operator, compose
from parscan_bp.originals import lax_scan
from parscan_bp.planner import blelloch, run_order
from parscan_bp.solvers.base import Complexity
from parscan_bp.solvers.tree import TreeSolver
from parscan_bp.types import Array


@dataclasses.dataclass(frozen=True, repr=False)
class Blelloch(TreeSolver):
    """The work-efficient scan with reversed operands (BPPSA Algorithm 1, section 3.2).

    The up-sweep composes neighbours level by level; only it multiplies matrices. The
    down-sweep hands the incoming state to the first child and pushes it through the
    first child's map for the second: it moves vectors only. Products that end at the
    last element are overwritten by the identity in Algorithm 1 (line 7); they are never
    made here. Any n, not only powers of two: a map without a partner moves up alone. On
    a uniform system each level is one batched operation.

    ``up_levels`` truncates the up-sweep (section 5.3): the maps reached are bridged by a
    linear sweep, and the down-sweep goes on from there. 0 is the linear scan.

    Steps 2 ceil(log2(n+1)) - 1 levels for lambda_n..lambda_1 and one more for lambda_0,
    work at most n matrix and 2n vector products, memory 2n operators.

    Args:
      up_levels: levels of the up-sweep; ``None`` means all.
      memory_limit, scaled, collect_chunk: see `TreeSolver`.

    Raises:
      TypeError, ValueError: if ``up_levels`` is not an int of at least 0.

    Example:
      >>> import jax, jax.numpy as jnp, parscan_bp as pb
      >>> step = lambda c, x: (0.5 * c + x, c)
      >>> loss = lambda xs: pb.scan(step, 0.0, xs, solver=pb.Blelloch())[0]
      >>> jax.grad(loss)(jnp.zeros(3)).tolist()
      [0.25, 0.5, 1.0]
    """

    up_levels: int | None = None

    ragged: ClassVar = True

    def __post_init__(self):
        super().__post_init__()
        set_ints(self, ("up_levels",), up_levels=0)

    def states(self, operator, leaving, state):
        n = leaving.shape[0]
        levels: list[tuple] = []  # (maps of this level, how many steps it has)
        maps, m = (operator, leaving), n
        while m > 1 and (self.up_levels is None or len(levels) < self.up_levels):
            levels.append((maps, m))
            maps, m = _up(maps, m), -(-m // 2)
        states = _linear(maps, m, state)
        for maps, m in reversed(levels):
            states = _down(maps, m, states)
        last = operator.take(n - 1).matvec(states[-1]) + leaving[-1]
        return states, last

    def complexity(self, n):
        matrix, vector, steps, levels, operators, m = 0, 1, 1, 0, n, n
        while m > 1 and (self.up_levels is None or levels < self.up_levels):
            pairs = -(-m // 2) - 1
            matrix, vector, operators = matrix + pairs, vector + pairs + m // 2, operators + pairs
            steps += 2 if pairs else 1
            levels, m = levels + 1, -(-m // 2)
        return Complexity(
            steps=steps + m - 1,
            matrix_products=matrix,
            vector_products=vector + m - 1,
            operators=operators,
        )

    def run_ragged(self, system):
        # An operator that is never multiplied, as that of the first layer, keeps its own form.
        schedule = blelloch(system.length, self.up_levels)
        form = self.form if self.scaled else None
        return run_order(schedule, system.operators, system.g, form=form)


def _pair(first, second):
    """(M1, b1) ⋄ (M2, b2) = (M2 M1, M2 b1 + b2): BPPSA's operator with reversed operands."""
    (m1, b1), (m2, b2) = first, second
    return compose(m1, m2), m2.matvec(b1) + b2


def _up(maps, m):
    """The maps of the next level, without the one that ends the array: it is never used.

    Level with m maps in traversal order -> ceil(m / 2) nodes, of which all but the last
    are made (each spans a full pair). Returned stacks have ceil(m / 2) - 1 entries.
    """
    pairs = -(-m // 2) - 1
    return _pair(_strided(maps, 0, pairs), _strided(maps, 1, pairs)) if pairs else None


def _strided(maps, offset, count):
    return jax.tree.map(lambda a: a[offset : offset + 2 * count : 2], maps)


def _linear(maps: tuple[Operator, Array], m: int, state: Array) -> Array:
    """States that enter each of the m nodes, one after the other."""
    if m == 1:
        return state[None]
    maps = jax.tree.map(lambda a: a[: m - 1], maps)

    def step(state, t):
        operator, b = t
        state = operator.matvec(state) + b
        return state, state

    _, after = lax_scan(step, state, maps)
    return jnp.concatenate([state[None], after])


def _down(maps, m, states):
    """States entering the m maps of a level, from those entering the nodes above."""
    operator, b = _strided(maps, 0, m // 2)
    second = operator.matvec(states[: m // 2]) + b
    pairs = jnp.stack([states[: m // 2], second], axis=1)
    inner = pairs.reshape(2 * (m // 2), *states.shape[1:])
    return inner if m % 2 == 0 else jnp.concatenate([inner, states[-1:]])
