"""A joint that is any function of several arrays, its Jacobians read from its trace or by VJP."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from parscan_bp.arguments import described
from parscan_bp.layers.base import flat
from parscan_bp.layers.joints import Joint
from parscan_bp.operators import Diagonal, MatrixFree, Operator
from parscan_bp.structure import find_structure
from parscan_bp.types import Array, PyTree

OfExamples = Callable[..., Array]
"""(params, x_1, ..., x_m) -> y for one entry of the batch, without a batch axis."""


@final
@dataclasses.dataclass(frozen=True)
class JointFunction(Joint):
    """y = f(params, x_1, ..., x_m), one batch entry at a time, of any arrays.

    The transposed Jacobian by an x of which f is elementwise, as its jaxpr tells, is the diagonal
    that one JVP gives. By any other it is matrix-free, by VJP, as that of a `Function`: products
    with vectors alone, of which solvers that multiply operators form the matrix.

    Args:
      function: f of parameters and of one entry of each input, without the batch axis.

    Raises:
      TypeError: if it is no function.

    Source: BPPSA eq. 3 by vector-Jacobian products.

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.layers import JointFunction
      >>> joint = JointFunction(lambda p, x, y: p * x * jnp.sum(y))
      >>> xs = jnp.array([[1.0, 2.0]]), jnp.array([[3.0]])
      >>> [type(a).__name__ for a in joint.adjoint_operators(2.0, xs, joint.apply(2.0, *xs))]
      ['Diagonal', 'MatrixFree']
    """

    function: OfExamples

    def __post_init__(self):
        if not callable(self.function):
            got = described(self.function)
            raise TypeError(f"function: got {got}; a function (params, *xs) is wanted")

    def apply(self, params, *xs):
        axes = (None, *(0 for _ in xs))
        return jax.vmap(self.function, in_axes=axes)(params, *xs)

    def adjoint_operators(self, params, xs, y):
        return [self._adjoint(params, xs, y, k) for k in range(len(xs))]

    def _adjoint(self, params: PyTree, xs: Sequence[Array], y: Array, k: int) -> Operator:
        of_one = lambda x: self.apply(params, *xs[:k], x, *xs[k + 1 :])  # noqa: E731
        x = xs[k]
        if (x.shape, x.dtype) == (y.shape, y.dtype):
            # Another function for each trace: what this one closes over may have changed.
            closed = jax.make_jaxpr(lambda x: of_one(x))(x)
            if find_structure(closed, 0, 1).diagonal:
                return Diagonal(flat(jax.jvp(of_one, (x,), (jnp.ones_like(x),))[1]))
        size = jax.ShapeDtypeStruct(flat(x).shape[1:], x.dtype)
        params = jax.tree.map(jnp.asarray, params)
        linear = Partial(_Push(self.function, k), params, *xs)
        stacked = [False] * len(jax.tree.leaves(params)) + [True] * len(xs)
        return MatrixFree(linear, stacked, size).transpose()

    def pullback(self, params, xs, y, ct):
        return jax.vjp(lambda params: self.apply(params, *xs), params)[1](ct)[0]


@dataclasses.dataclass(frozen=True)
class _Push:
    """J v of one entry by its k-th array. The arrays are arguments: nothing is kept per column."""

    function: OfExamples
    k: int

    def __call__(self, params: PyTree, *arrays: Any) -> Array:
        *xs, v = arrays
        x = xs[self.k]
        return jax.jvp(self._of(params, xs), (x,), (v.reshape(x.shape),))[1]

    def transposed(self, params: PyTree, *arrays: Any) -> Array:
        """J^T ct by VJP, which a function may have of its own, with no JVP beside it."""
        *xs, ct = arrays
        return jnp.ravel(jax.vjp(self._of(params, xs), xs[self.k])[1](ct)[0])

    def _of(self, params: PyTree, xs: list[Array]) -> Callable[[Array], Array]:
        at, k = list(xs), self.k
        return lambda x: jnp.ravel(self.function(params, *at[:k], x, *at[k + 1 :]))
