"""A tree over chunks, a sequential sweep inside each."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from parscan_bp.arguments import described, set_ints
from parscan_bp.operators import compose
from parscan_bp.originals import lax_scan
from parscan_bp.solvers.base import Complexity
from parscan_bp.solvers.blelloch import Blelloch
from parscan_bp.solvers.tree import TreeSolver


@dataclasses.dataclass(frozen=True, repr=False)
class Chunked(TreeSolver):
    """p chunks side by side: reduce each, scan the p results, sweep each.

    With p workers and n > p steps, the n / p + log p of BPPSA's eq. 6. Every chunk
    multiplies its Jacobians one after the other, all chunks as one batch; ``inner``
    solves the p chunk maps; then every chunk sweeps a vector from the state that enters
    it. What n leaves over p chunks is swept at the end. The compiled program has p and
    not n in it: its size does not grow with the length.

    By default, steps 2 n/p + 2 ceil(log2(p+1)), work n matrix and 2n vector products, memory n
    operators.

    Args:
      chunks: p, the number of chunks.
      inner: the tree that solves the chunk maps, scaled if either of the two is. What it holds
        counts into the limit of this solver, and its own does not.
      memory_limit, scaled, collect_chunk: see `TreeSolver`.

    Raises:
      TypeError, ValueError: if ``chunks`` is not an int of at least 1, or ``inner`` no tree.

    Example:
      >>> import jax, jax.numpy as jnp, parscan_bp as pb
      >>> step = lambda c, x: (0.5 * c + x, c)
      >>> loss = lambda xs: pb.scan(step, 0.0, xs, solver=pb.Chunked(chunks=2))[0]
      >>> jax.grad(loss)(jnp.zeros(3)).tolist()
      [0.25, 0.5, 1.0]
    """

    chunks: int = 64
    inner: TreeSolver = dataclasses.field(default=Blelloch(), kw_only=True)

    def __post_init__(self):
        super().__post_init__()
        set_ints(self, chunks=1)
        if not isinstance(self.inner, TreeSolver):
            raise TypeError(f"inner: got {described(self.inner)}; a tree, as Blelloch(), is wanted")

    def states(self, operator, leaving, state):
        n = leaving.shape[0]
        p = min(self.chunks, n)
        size, rest = divmod(n, p)
        whole = jax.tree.map(
            # (p * size, ...) -> (size, p, ...): the position inside a chunk leads.
            lambda a: jnp.swapaxes(a[: p * size].reshape(p, size, *a.shape[1:]), 0, 1),
            (operator, leaving),
        )

        def reduce(total, t):
            (m1, b1), (m2, b2) = total, t
            return (compose(m1, m2), m2.matvec(b1) + b2), None

        def sweep(state, t):
            m, b = t
            return m.matvec(state) + b, state

        first = jax.tree.map(lambda a: a[0], whole)
        maps = first
        if size > 1:
            maps, _ = lax_scan(reduce, first, jax.tree.map(lambda a: a[1:], whole))
        entering, _ = self.inner.states(self.inner.form(maps[0]), maps[1], state)
        after, shown = lax_scan(sweep, entering, whole)
        shown = jnp.swapaxes(shown, 0, 1).reshape(p * size, *state.shape)
        if not rest:
            return shown, after[-1]
        tail = jax.tree.map(lambda a: a[p * size :], (operator, leaving))
        last, shown_tail = lax_scan(sweep, after[-1], tail)
        return jnp.concatenate([shown, shown_tail]), last

    def complexity(self, n):
        p = min(self.chunks, n)
        size, rest = divmod(n, p)
        tree = self.inner.complexity(p)
        return Complexity(
            steps=(size - 1) + tree.steps + size + rest,
            matrix_products=p * (size - 1) + tree.matrix_products,
            vector_products=p * (size - 1) + tree.vector_products + n,
            operators=n + tree.operators,
        )
