"""A sum of operators kept apart."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import final

import jax
import jax.numpy as jnp

from parscan_bp.operators.base import Cost, Operator


@final
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Sum(Operator):
    """A = terms[0] + terms[1] + ..., each applied in its own structure.

    Args:
      terms: operators of one shape, of any structures; their stacks broadcast.

    Raises:
      TypeError: if a term is not an operator, when the `shape` is first needed.
      ValueError: if there is none; if their shapes differ, when the `shape` is first needed.

    Source: the transposed Jacobian I + F' of a residual block.

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.operators import Diagonal, Identity, Sum
      >>> Sum((Identity(2), Diagonal(jnp.array([1.0, 10.0])))).matvec(jnp.ones(2)).tolist()
      [2.0, 11.0]
    """

    terms: Sequence[Operator]

    def __post_init__(self):
        if isinstance(self.terms, (tuple, list)) and not self.terms:
            raise ValueError("terms: got none; at least one operator is wanted")
        if isinstance(self.terms, list):
            object.__setattr__(self, "terms", tuple(self.terms))

    @property
    def shape(self):
        for k, term in enumerate(self.terms):
            if not isinstance(term, Operator):
                raise TypeError(f"terms[{k}]: got {type(term).__name__}; an Operator is wanted")
            if term.shape != self.terms[0].shape:
                raise ValueError(f"terms[{k}]: got {term.shape}; terms[0] is {self.terms[0].shape}")
        return self.terms[0].shape

    @property
    def dtype(self):
        with_leaves = [term.dtype for term in self.terms if term.leaves()]
        return jnp.result_type(*(with_leaves or [self.terms[0].dtype]))

    @property
    def nnz(self):
        return sum(term.nnz for term in self.terms)

    @property
    def composes(self):  # type: ignore[override]
        return all(term.composes for term in self.terms)

    @property
    def multilinear(self):  # type: ignore[override]
        return all(term.multilinear for term in self.terms)

    def map_leaves(self, f):
        return Sum(tuple(term.map_leaves(f) for term in self.terms))

    def matvec(self, v):
        self.check_vector(v)
        return functools.reduce(jnp.add, [term.matvec(v) for term in self.terms])

    def transpose(self):
        return Sum(tuple(term.transpose() for term in self.terms))

    def as_dense(self):
        dense = functools.reduce(jnp.add, [term.as_dense() for term in self.terms])
        return dense.astype(self.dtype)

    def cost(self) -> Cost:
        """The terms' own, and one addition per entry for each term after the first."""
        stack = self.stack_shape
        sums = Cost((len(self.terms) - 1) * self.cost_of(self.shape[0]).flops, 0)
        return sum((term.cost_over(stack) for term in self.terms), sums)
