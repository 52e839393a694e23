"""The identity, symbolic."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp
import numpy as np

from parscan_bp.operators.base import Cost, Operator
from parscan_bp.operators.diagonal import Diagonal


@final
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Identity(Operator):
    """A v = v, shared by every map of a stack of any length. It has no arrays and costs nothing.

    Args:
      size: n.
      dtype: of `as_dense`. Composing with another operator returns that operator, and `matvec`
        returns the vector: this dtype promotes nothing.

    Raises:
      TypeError: if ``size`` is not an int.
      ValueError: if ``size`` is negative.

    Source: BPPSA section 3.1, the identity value of A ⋄ B = B A.

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.operators import Identity
      >>> Identity(2).matvec(jnp.array([1.0, 2.0])).tolist()
      [1.0, 2.0]
    """

    size: int = dataclasses.field(metadata={"static": True})
    dtype: Any = dataclasses.field(default=np.dtype("float32"), metadata={"static": True})

    closed: ClassVar = True
    multilinear: ClassVar = True
    held_by: ClassVar = {Diagonal: lambda op: Diagonal(jnp.ones(op.size, op.dtype))}

    def __post_init__(self):
        if isinstance(self.size, bool) or not isinstance(self.size, (int, np.integer)):
            raise TypeError(f"size: got {self.size!r}; an int is wanted")
        if self.size < 0:
            raise ValueError(f"size: got {self.size}; at least 0 is wanted")
        object.__setattr__(self, "dtype", np.dtype(self.dtype))

    @property
    def shape(self):
        return (self.size, self.size)

    @property
    def nnz(self):
        return self.size

    def matvec(self, v):
        self.check_vector(v)
        return v

    def transpose(self):
        return self

    def as_dense(self):
        return jnp.eye(self.size, dtype=self.dtype)

    def cost(self) -> Cost:
        return Cost(0, 0)
