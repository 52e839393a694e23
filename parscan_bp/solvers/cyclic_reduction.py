"""Cyclic reduction: odd and even steps decoupled, level by level."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from parscan_bp.operators import compose
from parscan_bp.solvers.base import Complexity
from parscan_bp.solvers.tree import TreeSolver
from parscan_bp.trees import add


@dataclasses.dataclass(frozen=True, repr=False)
class CyclicReduction(TreeSolver):
    """Naumov's variant of cyclic reduction: two independent propagations, recursively.

    A step put into the next one skips it,

        x_t = M_t x_{t-1} + b_t = (M_t M_{t-1}) x_{t-2} + (M_t b_{t-1} + b_t),

    which is the scaling S of a lower system, and T of an upper one. Odd and even positions then
    have nothing to do with each other: the permutations P and Q of the paper sort them into two
    systems of half the length, equations (30) and (31), and each is decoupled again. Here positions
    stay where they are, and the systems of one level are those of a stride s = 1, 2, 4, ...; the
    first s positions are known, and their products are never made. The paper's B^(k) is
    M_t M_{t-1}, its g^(k) the new b_t.

    It has half the levels of `Blelloch`, which goes up and comes down, and a factor of log2(n) more
    products; a map of a level overwrites that of the one before.

    Steps ceil(log2 n) + 1, work n log2(n) matrix and vector products at most, memory 2n operators.

    Args:
      memory_limit, scaled, collect_chunk: see `TreeSolver`.

    Source: M. Naumov, "Parallel complexity of forward and backward propagation", 2017, section 3.1,
    equations (30) to (35), and the appendix.

    Example:
      >>> import jax, jax.numpy as jnp, parscan_bp as pb
      >>> step = lambda c, x: (0.5 * c + x, c)
      >>> loss = lambda xs: pb.scan(step, 0.0, xs, solver=pb.CyclicReduction())[0]
      >>> jax.grad(loss)(jnp.zeros(3)).tolist()
      [0.25, 0.5, 1.0]
    """

    ragged: ClassVar = True

    def states(self, operator, leaving, state):
        n = leaving.shape[0]
        after = leaving.at[0].add(operator.take(0).matvec(state))
        maps, stride = jax.tree.map(lambda a: a[1:], operator), 1
        while stride < n:
            # maps has an entry for each of the positions stride..n-1.
            pushed = maps.matvec(after[:-stride]) + after[stride:]
            after = jnp.concatenate([after[:stride], pushed])
            left = n - 2 * stride
            if left > 0:
                first = jax.tree.map(lambda a, left=left: a[:left], maps)
                second = jax.tree.map(lambda a, stride=stride: a[stride:], maps)
                maps = compose(first, second)
            stride *= 2
        return jnp.concatenate([state[None], after[:-1]]), after[-1]

    def run_ragged(self, system):
        n, out = system.length, list(system.g)
        # A map that is never multiplied, as that of the first layer, keeps its own form.
        form = self.form if self.scaled else lambda a: a
        maps, stride = list(system.operators), 1
        while stride <= n:
            # maps[t] brings lambda of t + stride to t.
            out = [
                add(v, None if out[t + stride] is None else maps[t].matvec(out[t + stride]))
                if t + stride <= n
                else v
                for t, v in enumerate(out)
            ]
            maps = [
                compose(form(maps[t + stride]), form(maps[t])) for t in range(n + 1 - 2 * stride)
            ]
            stride *= 2
        return out

    def complexity(self, n):
        levels, matrix, vector, stride = 0, 0, 1, 1
        while stride < n:
            levels, vector = levels + 1, vector + n - stride
            matrix += max(n - 2 * stride, 0)
            stride *= 2
        return Complexity(
            steps=levels + 1, matrix_products=matrix, vector_products=vector, operators=2 * n
        )
