"""`jax.lax.associative_scan` over the reversed-operand Jacobian monoid."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jax import lax

from parscan_bp.operators import compose
from parscan_bp.solvers.base import Complexity
from parscan_bp.solvers.tree import TreeSolver


@dataclasses.dataclass(frozen=True, repr=False)
class Associative(TreeSolver):
    """All prefix products by `jax.lax.associative_scan`.

    An affine map v -> M v + b is a pair (M, b); two of them compose as
    (M1, b1) ⋄ (M2, b2) = (M2 M1, M2 b1 + b2), which is BPPSA's operator with the
    operands reversed (section 3.1). The scan multiplies matrices in its down-sweep too:
    about 2n matrix products, where `Blelloch` makes at most n.

    Steps 2 log2 n, work 2n matrix and 3n vector products, memory about 2n operators.

    Args:
      memory_limit, scaled, collect_chunk: see `TreeSolver`.

    Example:
      >>> import jax, jax.numpy as jnp, parscan_bp as pb
      >>> step = lambda c, x: (0.5 * c + x, c)
      >>> loss = lambda xs: pb.scan(step, 0.0, xs, solver=pb.Associative())[0]
      >>> jax.grad(loss)(jnp.zeros(3)).tolist()
      [0.25, 0.5, 1.0]
    """

    def states(self, operator, leaving, state):
        def combine(first, second):
            (m1, b1), (m2, b2) = first, second
            return compose(m1, m2), m2.matvec(b1) + b2

        first = operator.take(0).matvec(state) + leaving[0]
        leaving = leaving.at[0].set(first)
        _, after = lax.associative_scan(combine, (operator, leaving))
        return jnp.concatenate([state[None], after[:-1]]), after[-1]

    def complexity(self, n):
        # lax.associative_scan: T(n) = n//2 pairs up, (n-1)//2 pairs down, T(n//2) between.
        pairs, levels, m = 0, 0, n
        while m > 1:
            pairs += m // 2 + (m - 1) // 2
            levels += 2 if m > 2 else 1
            m //= 2
        return Complexity(
            steps=levels + 1, matrix_products=pairs, vector_products=pairs + 1, operators=2 * n
        )
