"""A bi-diagonal system as the equation x = N x + b with a nilpotent N, whatever its direction.

With unit diagonal blocks the matrix of the system is I - N, where N has the maps next to the
diagonal: N^n = 0 for n steps. The unknowns are the states that leave the steps of a uniform system,
or lambda_0..lambda_{n-1} of a ragged one. One product of N with a vector is one product of every
map, all at once.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from parscan_bp.operators import Operator
from parscan_bp.solvers.sweep import Sweep
from parscan_bp.system import Ragged, System, zeros_of_shape
from parscan_bp.trees import add, at_least_single
from parscan_bp.types import Array, PyTree


@dataclasses.dataclass(frozen=True, eq=False)
class SystemAsFixedPoint:
    """x = image(x), where image(x) = N x + b.

    Attributes:
      image: x -> N x + b, a product of every map.
      push: x -> N x, the same without b.
      zero: x = 0.
      operators: the maps, as one stack or one by one.
      length: n, after which N^n = 0.
      leading: axes of x's arrays in front of one vector's own: 1 for steps that are stacked.
    """

    image: Callable[[PyTree], PyTree]
    push: Callable[[PyTree], PyTree]
    zero: PyTree
    operators: Sequence[Operator]
    length: int
    leading: int

    def check_floats(self, solver: Any) -> None:
        """Raises `TypeError` unless all numbers are floats, or complex: for what divides."""
        for leaf in jax.tree.leaves(self.zero):
            if not jnp.issubdtype(leaf.dtype, jnp.inexact):
                raise TypeError(
                    f"system: got {leaf.dtype}; {solver!r} divides, and wants floats or complex "
                    "numbers. Sweep() takes every dtype"
                )

    def residual(self, x: PyTree, image: PyTree) -> Array:
        """max over rows of |image - x| / |image| in the maximum norm, a row being one vector.

        Rows and not the whole: cotangents of distant steps may differ by many powers of ten.
        """

        def norm(a):
            size = jnp.abs(a.astype(at_least_single(a.dtype)))
            return jnp.max(size, -1, initial=0) if a.ndim > self.leading else size

        def worst(a, b):
            error = norm(b - a)
            return jnp.max(jnp.where(error == 0, 0, error / norm(b)), initial=0)

        found = jax.tree.leaves(jax.tree.map(worst, x, image))
        wide = at_least_single(*(a.dtype for a in found))
        return jnp.max(jnp.stack([a.astype(wide) for a in found]))


def of_system(
    system: System, state: PyTree
) -> tuple[SystemAsFixedPoint, Callable[[PyTree], tuple[PyTree, PyTree]]]:
    """The equation of a uniform system; and from its solution the shown vectors and the last state.

    Args:
      system: n steps, made explicit all at once.
      state: what enters the first traversed one.
    """
    n, backward = system.length, system.backward
    block = system.block(0, n)
    multiply = functools.partial(block.operator.of_each, lambda a, v: a.matvec(v))

    def entering(x, first):
        def shift(a, b):
            return jnp.concatenate([a[1:], b[None]] if backward else [b[None], a[:-1]])

        return jax.tree.map(shift, x, first)

    def shown(x):
        return add(block.entering, entering(x, state))

    def image(x):
        return add(multiply(shown(x)), block.leaving)

    def push(x):
        return multiply(entering(x, jax.tree.map(jnp.zeros_like, state)))

    def read(x):
        return shown(x), jax.tree.map(lambda a: a[0 if backward else -1], x)

    start = jax.tree.map(lambda a: jnp.zeros_like(a, shape=(n, *a.shape)), state)
    zero = zeros_of_shape(jax.eval_shape(image, start))
    return SystemAsFixedPoint(image, push, zero, [block.operator], n, leading=1), read


def of_ragged(system: Ragged) -> SystemAsFixedPoint:
    """The equation of the unknowns lambda_0..lambda_{n-1} of a ragged system.

    Args:
      system: of at least one operator.
    """
    operators, g, end = list(system.operators), list(system.g), jnp.asarray(system.g[-1])
    like = jax.eval_shape(lambda: Sweep().run_ragged(system))

    def multiply(x, last):
        return [a.matvec(v) for a, v in zip(operators, [*x[1:], last], strict=True)]

    def image(x):
        return [add(b, v) for b, v in zip(g[:-1], multiply(x, end), strict=True)]

    def push(x):
        pushed = multiply(x, jnp.zeros_like(end))
        return [
            jnp.broadcast_to(v, a.shape).astype(a.dtype) for v, a in zip(pushed, x, strict=True)
        ]

    zero = zeros_of_shape(like[:-1])
    return SystemAsFixedPoint(image, push, zero, operators, system.length, leading=0)
