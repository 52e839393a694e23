"""A product of operators kept apart."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import final

import jax
import jax.numpy as jnp

from parscan_bp.operators.algebra import compose, to_scaled
from parscan_bp.operators.base import Cost, Operator


@final
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Product(Operator):
    """A = factors[0] factors[1] ... factors[-1], applied right to left and never multiplied out.

    Pays where the factors take fewer numbers than their product, as in W diag(d) with one W for
    all steps.

    Args:
      factors: operators whose neighbouring sizes fit, of any structures; their stacks broadcast.

    Raises:
      TypeError: if a factor is not an operator, when the `shape` is first needed.
      ValueError: if there is none; if neighbouring sizes do not fit, when the `shape` is first
        needed.

    Source: BPPSA appendix E (a cell's transposed Jacobian as a product of J and j).

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.operators import Dense, Diagonal, Product
      >>> weight, d = jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([1.0, 10.0])
      >>> Product((Dense(weight), Diagonal(d))).matvec(jnp.ones(2)).tolist()
      [21.0, 43.0]
    """

    factors: Sequence[Operator]

    def __post_init__(self):
        if isinstance(self.factors, (tuple, list)) and not self.factors:
            raise ValueError("factors: got none; at least one operator is wanted")
        if isinstance(self.factors, list):
            object.__setattr__(self, "factors", tuple(self.factors))

    @property
    def shape(self):
        for k, factor in enumerate(self.factors):
            if not isinstance(factor, Operator):
                raise TypeError(f"factors[{k}]: got {type(factor).__name__}; an Operator is wanted")
            if k and self.factors[k - 1].shape[1] != factor.shape[0]:
                raise ValueError(
                    f"factors[{k}]: got {factor.shape}, applied before factors[{k - 1}] of "
                    f"{self.factors[k - 1].shape}; its rows must be the columns of that"
                )
        return (self.factors[0].shape[0], self.factors[-1].shape[1])

    @property
    def dtype(self):
        with_leaves = [factor.dtype for factor in self.factors if factor.leaves()]
        return jnp.result_type(*(with_leaves or [self.factors[0].dtype]))

    @property
    def nnz(self):
        return sum(factor.nnz for factor in self.factors)

    @property
    def multilinear(self):  # type: ignore[override]
        return all(factor.multilinear for factor in self.factors)

    def map_leaves(self, f):
        return Product(tuple(factor.map_leaves(f) for factor in self.factors))

    def matvec(self, v):
        self.check_vector(v)
        return functools.reduce(lambda v, factor: factor.matvec(v), reversed(self.factors), v)

    def transpose(self):
        return Product(tuple(factor.transpose() for factor in reversed(self.factors)))

    def as_dense(self):
        *left, last = self.factors
        dense = last.as_dense()
        for factor in reversed(left):
            # Column by column, so that each factor multiplies in its own structure.
            dense = jax.vmap(factor.matvec, in_axes=-1, out_axes=-1)(dense)
        return jnp.broadcast_to(dense, (*self.stack_shape, *self.shape))

    def scaled(self):
        factors: list[Operator] = [to_scaled(factor) for factor in reversed(self.factors)]
        return functools.reduce(compose, factors)

    def cost(self) -> Cost:
        stack = self.stack_shape
        return sum((factor.cost_over(stack) for factor in self.factors), Cost(0, 0))
