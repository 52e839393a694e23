"""Mantissa and exponent apart: products of Jacobians beyond the range of their dtype."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import ClassVar, final

import jax
import jax.numpy as jnp

from parscan_bp.operators.aligned import ZERO_EXPONENT, aligned_matmul, scaled_terms
from parscan_bp.operators.base import Cost, Operator
from parscan_bp.operators.explicit import Explicit
from parscan_bp.operators.powers import ldexp, normalise
from parscan_bp.types import Array


@final
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class ScaledVector:
    """v = mantissa * 2**exponent, an exponent for each entry.

    What a long recurrence carries when its values, and not only the products of its operators,
    leave the dtype's range: `Scaled.matvec_scaled` moves it, `add` adds to it.

    Args:
      mantissa: (..., n).
      exponent: int32 (..., n).

    Source: standard (exponents of unlimited range); the ranges are those of IEEE 754.

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.operators import Scaled, ScaledVector, Diagonal
      >>> up, v = Scaled.of(Diagonal(jnp.array([1e30, 1.0]))), ScaledVector.of(jnp.ones(2))
      >>> for _ in range(5):
      ...     v = up.matvec_scaled(v)
      >>> bool(v.exponent[0] > 400), v.value().tolist()
      (True, [inf, 1.0])
    """

    mantissa: Array
    exponent: Array

    @classmethod
    def of(cls, v: Array, exponent: Array | int = 0) -> ScaledVector:
        """v 2**exponent, normalised: every mantissa that is not 0 has its modulus in [0.5, 1).

        Non-finite entries are unchanged. The exponent broadcasts with ``v``.
        """
        return cls(*normalise(v, exponent))

    def value(self) -> Array:
        """The plain vector (..., n); what leaves the range becomes infinite or 0."""
        return ldexp(self.mantissa, self.exponent)

    def add(self, other: ScaledVector) -> ScaledVector:
        """The sum, each entry aligned to the larger of its two exponents and normalised."""
        parts = (self, other)
        sizes = [jnp.where(p.mantissa != 0, p.exponent, 2 * ZERO_EXPONENT) for p in parts]
        top = jnp.maximum(*sizes)
        total = jnp.add(*[ldexp(p.mantissa, p.exponent - top) for p in parts])
        return ScaledVector.of(total, top)


@final
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Scaled(Operator):
    """A = mantissa * 2**exponent, an exponent for each entry.

    A product of n Jacobians grows or shrinks like a power of n, and leaves float32's range after
    a few hundred steps even where the vector recurrence is tame; inf * 0 is NaN from then on. With
    exponents beside the mantissas, which are normalised after every product (`compose` does it), an
    entry keeps its size and its relative precision whatever the size of the others:

        |computed - exact| <= gamma (|A_n| ... |A_1| |v|),   gamma = O(n roundings),

    entry by entry, as for n products of a matrix and a vector, wherever the right-hand side is in
    the dtype's range. One exponent for each map would not do that: of diag(2, 1) to the power of
    127 it loses the 1. Beyond 2**27, a million products of the largest float32 numbers, exponents
    end and entries become NaN.

    Products of diagonals cost a few operations an entry, the others an alignment of each term, see
    `operators.aligned`. Derivatives of such products are taken at fixed exponents, relative to the
    entries: a tangent is lost where it is 2**126 times larger or smaller than its entry. No solver
    differentiates products; `parscan_bp.solve` solves for derivatives as for values.

    Args:
      mantissa: a `Dense`, `Diagonal` or `BlockDiagonal`, or another `Explicit` operator.
      exponent: int32, of the shape of the mantissa's array.

    Raises:
      TypeError: if the mantissa is of another structure.
      ValueError: if the exponent has another shape, when its `shape` is first needed.

    Source: parscan_bp's answer to the products of BPPSA section 3.1 in finite range; the exact
    power-of-two scaling is that of IEEE 754 ``frexp`` and ``ldexp``; the bound is that of any order
    of the products (Higham, Accuracy and Stability of Numerical Algorithms, section 3.7).

    Example:
      >>> import functools, jax.numpy as jnp
      >>> from parscan_bp.operators import Diagonal, Scaled, compose
      >>> op = Scaled.of(Diagonal(jnp.array([2.0**100, 1.0])))
      >>> product = functools.reduce(compose, [op] * 10)
      >>> product.mantissa.diagonal.tolist(), product.exponent.tolist()
      ([0.5, 0.5], [1001, 1])
    """

    mantissa: Explicit
    exponent: Array

    closed: ClassVar = True
    multilinear: ClassVar = True

    def __post_init__(self):
        if isinstance(self.mantissa, Operator):
            _check_mantissa("mantissa", self.mantissa)

    @classmethod
    def of(cls, op: Operator, exponent: Array | int = 0) -> Scaled:
        """op 2**exponent, normalised: every mantissa that is not 0 has its modulus in [0.5, 1).

        The modulus of a complex entry is the larger of its two parts'. Non-finite entries and zeros
        are unchanged, and have exponent 0.

        Args:
          op: the operator.
          exponent: integers that broadcast with the array of ``op``.

        Raises:
          TypeError: if ``op`` is of another structure, or of integers.

        Example:
          >>> import jax.numpy as jnp
          >>> from parscan_bp.operators import Dense, Scaled
          >>> op = Scaled.of(Dense(jnp.array([[3.0, 0.0], [0.0, 1.0]])))
          >>> op.mantissa.matrix.tolist(), op.exponent.tolist()
          ([[0.75, 0.0], [0.0, 0.5]], [[2, 0], [0, 1]])
        """
        op = _check_mantissa("op", op)
        if not jnp.issubdtype(op.dtype, jnp.inexact):
            raise TypeError(f"op: got {type(op).__name__} of {op.dtype}; floats have exponents")
        return _with(op, *normalise(op.numbers, exponent))

    @property
    def shape(self):
        if not isinstance(self.mantissa, Operator):
            raise TypeError(f"mantissa: got {type(self.mantissa).__name__}; an Operator is wanted")
        wanted = self.mantissa.numbers.shape
        if jnp.shape(self.exponent) != wanted:
            raise ValueError(
                f"exponent: got shape {jnp.shape(self.exponent)}; one for each entry of the "
                f"mantissa, {wanted}, is wanted (Scaled.of broadcasts)"
            )
        return self.mantissa.shape

    @property
    def dtype(self):
        return self.mantissa.dtype

    @property
    def structure(self):
        return self.mantissa.structure._replace(scaled=True)

    def scaled(self):
        return self

    def map_leaves(self, f):
        (ndim,) = self.mantissa.core_ndims.values()
        return Scaled(self.mantissa.map_leaves(f), f(self.exponent, ndim))

    def matvec(self, v):
        self.check_vector(v)
        dtype = jnp.result_type(self.dtype, v)
        numbers = self.mantissa.numbers
        if self.mantissa.elementwise:
            return scaled_terms(numbers, self.exponent, v).astype(dtype)
        # Rows of the matrix, or of each block, times the vector or its group.
        terms = scaled_terms(numbers, self.exponent, self.mantissa.grouped(v)[..., None, :])
        return self.mantissa.joined(jnp.sum(terms, axis=-1).astype(dtype))

    def matvec_scaled(self, v: ScaledVector) -> ScaledVector:
        """A v for a vector with exponents of its own; it overflows nowhere.

        Args:
          v: vectors (..., cols); the leading axes broadcast with the stack.

        Returns:
          The product, normalised.

        Raises:
          ValueError: if ``v`` has another size or does not broadcast with the stack.
        """
        self.check_vector(v.mantissa)
        numbers = self.mantissa.numbers
        if self.mantissa.elementwise:
            return ScaledVector.of(numbers * v.mantissa, self.exponent + v.exponent)
        columns = [self.mantissa.grouped(part)[..., None] for part in (v.mantissa, v.exponent)]
        product = aligned_matmul(numbers, self.exponent, *columns)
        return ScaledVector(*[self.mantissa.joined(part[..., 0]) for part in product])

    def after(self, first: Scaled) -> Scaled:
        """The product that `compose` makes, of ``first`` and then this one.

        Both have one structure and order of blocks, or one of them is diagonal.
        """
        own, other = self.mantissa, first.mantissa
        numbers, ups = (own.numbers, other.numbers), (self.exponent, first.exponent)
        if own.elementwise and other.elementwise:
            return _with(own, *normalise(numbers[0] * numbers[1], ups[0] + ups[1]))
        # A diagonal scales columns when it comes first, rows when it comes second.
        if other.elementwise:
            scale, up = (own.grouped(a)[..., None, :] for a in (numbers[1], ups[1]))
            return _with(own, *normalise(numbers[0] * scale, ups[0] + up))
        if own.elementwise:
            scale, up = (other.grouped(a)[..., :, None] for a in (numbers[0], ups[0]))
            return _with(other, *normalise(scale * numbers[1], up + ups[1]))
        return _with(own, *aligned_matmul(numbers[0], ups[0], numbers[1], ups[1]))

    def transpose(self):
        return self.rearranged(lambda op: op.transpose())

    def as_dense(self):
        """The matrices; what leaves the dtype's range becomes infinite or 0."""
        return ldexp(self.mantissa.as_dense(), self._exponents.as_dense())

    def rearranged(self, f: Callable[[Operator], Operator]) -> Scaled:
        """The same numbers in other places: ``f`` of the mantissas, and of the exponents."""
        ((exponent, _),) = f(self._exponents).leaves()
        return Scaled(f(self.mantissa), exponent)  # type: ignore[arg-type]

    def cost(self) -> Cost:
        """The mantissa's, and three exact factors and a doubling for each of its numbers."""
        return self.mantissa.cost() + Cost(4 * self.mantissa.numbers.size, 4 * self.exponent.size)

    @property
    def _exponents(self) -> Operator:
        """The exponents where their mantissas stand; those of no number are 0."""
        return self.mantissa.map_leaves(lambda *_: self.exponent)


def _with(op: Operator, mantissa: Array, exponent: Array) -> Scaled:
    return Scaled(op.map_leaves(lambda *_: mantissa), exponent)  # type: ignore[arg-type]


def _check_mantissa(name: str, op: Operator) -> Explicit:
    if isinstance(op, Explicit):
        return op
    raise TypeError(
        f"{name}: got {type(op).__name__}; Dense, Diagonal or BlockDiagonal is wanted "
        "(to_scaled converts other structures)"
    )
