"""Mantissa and exponent apart: products of Jacobians beyond the range of their dtype."""

from __future__ import annotations

import dataclasses
import math
from typing import final

import jax
import jax.numpy as jnp
import numpy as np

from parscan_bp.operators.base import Cost, Operator
from parscan_bp.operators.block_diagonal import BlockDiagonal
from parscan_bp.operators.dense import Dense
from parscan_bp.operators.diagonal import Diagonal
from parscan_bp.operators.powers import ldexp, normalise
from parscan_bp.types import Array

_MANTISSAS = (Dense, Diagonal, BlockDiagonal)
_NO_SIZE = np.int32(-(2**30))


@final
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class ScaledVector:
    """v = mantissa * 2**exponent, one exponent per vector.

    What a long recurrence carries when its values, and not only the products of its operators,
    leave the dtype's range: `Scaled.matvec_scaled` moves it, `add` adds to it.

    Args:
      mantissa: (..., n).
      exponent: int32 (...).

    Source: standard (block floating point); the ranges are those of IEEE 754.

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.operators import Scaled, ScaledVector, Diagonal
      >>> up, v = Scaled.of(Diagonal(jnp.array([1e30, 1e29]))), ScaledVector.of(jnp.ones(2))
      >>> for _ in range(5):
      ...     v = up.matvec_scaled(v)
      >>> bool(jnp.isfinite(v.mantissa).all()), int(v.exponent) > 400
      (True, True)
    """

    mantissa: Array
    exponent: Array

    @classmethod
    def of(cls, v: Array, exponent: Array | int = 0) -> ScaledVector:
        """v 2**exponent, normalised: the largest finite |entry| of a mantissa is in [0.5, 1).

        A zero vector has exponent 0; non-finite entries are unchanged.
        """
        return cls(*normalise(v, 1, exponent))

    def value(self) -> Array:
        """The plain vector (..., n); what leaves the range becomes infinite or 0."""
        return ldexp(self.mantissa, jnp.expand_dims(self.exponent, -1))

    def add(self, other: ScaledVector) -> ScaledVector:
        """The sum, aligned to the larger of the two exponents and normalised."""
        parts = (self, other)
        sizes = [jnp.where(jnp.any(p.mantissa != 0, -1), p.exponent, _NO_SIZE) for p in parts]
        exponent = jnp.maximum(*sizes)
        mantissas = [ldexp(p.mantissa, (p.exponent - exponent)[..., None]) for p in parts]
        return ScaledVector.of(mantissas[0] + mantissas[1], exponent)


@final
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Scaled(Operator):
    """A = mantissa * 2**exponent, one exponent per map.

    A product of n Jacobians grows or shrinks like a power of n, and leaves float32's range after
    a few hundred steps even where the vector recurrence is tame; inf * 0 is NaN from then on. With
    the exponent beside a mantissa that is normalised after every product (`compose` does it), the
    product overflows after about 2**31 / 128 steps.

    What is kept is the size of a map, not of each entry: entries more than the dtype's range below
    the largest of their map (2**-126 of it in float32) are flushed to zero.

    Args:
      mantissa: a `Dense`, `Diagonal` or `BlockDiagonal`.
      exponent: int32 (...), the stack axes of the mantissa or axes that broadcast with them.

    Raises:
      TypeError: if the mantissa is of another structure.

    Source: parscan_bp's answer to the products of BPPSA section 3.1 in finite range; the exact
    power-of-two scaling is that of IEEE 754 ``frexp`` and ``ldexp``.

    Example:
      >>> import functools, jax.numpy as jnp
      >>> from parscan_bp.operators import Diagonal, Scaled, compose
      >>> op = Scaled.of(Diagonal(jnp.array([2.0**100, 2.0**90])))
      >>> product = functools.reduce(compose, [op] * 10)
      >>> product.mantissa.diagonal.tolist() == [0.5, 2.0**-101], int(product.exponent)
      (True, 1001)
    """

    mantissa: Dense | Diagonal | BlockDiagonal
    exponent: Array

    def __post_init__(self):
        if isinstance(self.mantissa, Operator):
            _check_mantissa("mantissa", self.mantissa)

    @classmethod
    def of(cls, op: Dense | Diagonal | BlockDiagonal, exponent: Array | int = 0) -> Scaled:
        """op 2**exponent, normalised: the largest finite |entry| of each mantissa in [0.5, 1).

        |entry| of a complex entry is the larger of its two parts' magnitudes. A zero map has
        exponent 0; non-finite entries are unchanged.

        Args:
          op: the operator.
          exponent: integers that broadcast with the stack axes of ``op``.

        Raises:
          TypeError: if ``op`` is of another structure.

        Example:
          >>> import jax.numpy as jnp
          >>> from parscan_bp.operators import Dense, Scaled
          >>> op = Scaled.of(Dense(jnp.array([[3.0, 0.0], [0.0, 1.0]])))
          >>> op.mantissa.matrix.tolist(), int(op.exponent)
          ([[0.75, 0.0], [0.0, 0.25]], 2)
        """
        _check_mantissa("op", op)
        ((leaf, ndim),) = op.leaves()
        mantissa, total = normalise(leaf, ndim, exponent)
        return cls(op.map_leaves(lambda *_: mantissa), total)

    @property
    def shape(self):
        if not isinstance(self.mantissa, Operator):
            raise TypeError(f"mantissa: got {type(self.mantissa).__name__}; an Operator is wanted")
        return self.mantissa.shape

    @property
    def dtype(self):
        return self.mantissa.dtype

    def map_leaves(self, f):
        return Scaled(self.mantissa.map_leaves(f), f(self.exponent, 0))

    def matvec(self, v):
        # The vector is normalised too, or mantissa times vector could overflow where A v does not.
        self._check_vector(v)
        vector = ScaledVector.of(v)
        product = self.mantissa.matvec(vector.mantissa)
        return ldexp(product, jnp.expand_dims(self.exponent + vector.exponent, -1))

    def matvec_scaled(self, v: ScaledVector) -> ScaledVector:
        """A v for a vector with an exponent of its own; it overflows nowhere.

        Args:
          v: vectors (..., cols); the leading axes broadcast with the stack.

        Returns:
          The product, normalised.

        Raises:
          ValueError: if ``v`` has another size or does not broadcast with the stack.
        """
        return ScaledVector.of(self.mantissa.matvec(v.mantissa), self.exponent + v.exponent)

    def transpose(self):
        return Scaled(self.mantissa.transpose(), self.exponent)

    def as_dense(self):
        """The matrices; what leaves the dtype's range becomes infinite or 0."""
        return ldexp(self.mantissa.as_dense(), self.exponent[..., None, None])

    def cost(self) -> Cost:
        """The mantissa's, and three exact factors and a maximum for each entry of two vectors."""
        stack = self.stack_shape
        entries = math.prod(stack) * sum(self.shape)
        return self.mantissa.cost_over(stack) + Cost(4 * entries, 4 * self.exponent.size)


def _check_mantissa(name: str, op: Operator) -> None:
    if not isinstance(op, _MANTISSAS):
        raise TypeError(
            f"{name}: got {type(op).__name__}; Dense, Diagonal or BlockDiagonal is wanted "
            "(to_scaled converts other structures)"
        )
