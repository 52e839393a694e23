"""The operator interface: a stack of linear maps of one structure."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from parscan_bp.jaxprs.batching import mapped
from parscan_bp.operators.stacked import Stacked
from parscan_bp.sparsity import Pattern
from parscan_bp.trees import same_structure
from parscan_bp.types import Array, PyTree


@dataclasses.dataclass(frozen=True)
class Cost:
    """Work and traffic of an operation, as counted from the shapes.

    Args:
      flops: multiplications and additions, in the operands' own (real or complex) arithmetic.
      bytes: what is read and written if every array moves once.

    Example:
      >>> Cost(2, 8) + Cost(1, 4)
      Cost(flops=3, bytes=12)
    """

    flops: int
    bytes: int

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.bytes + other.bytes)


class Structure(NamedTuple):
    """What is known of an operator without its numbers.

    Args:
      kind: the operator class; of a `Scaled` one, that of its mantissa.
      block: order of the blocks of a `BlockDiagonal`, else 0.
      scaled: whether an exponent is kept beside the numbers.

    Example:
      >>> from parscan_bp.operators import Diagonal, Structure
      >>> Structure(Diagonal).scaled
      False
    """

    kind: type[Operator]
    block: int = 0
    scaled: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Operator(Stacked, abc.ABC):
    """A stack of linear maps v -> A v of one structure, abstract.

    In back-propagation A_t is the transposed Jacobian of step t (BPPSA section 3.1); nothing here
    depends on that. Arrays have stack axes in front, see `operators.stacked.Stacked`. Vectors are
    arrays (..., n) whose leading axes broadcast with the stack; of a stack that is `aligned`, axis
    by axis.

    A new structure is one class, here or in anybody's own code: a frozen dataclass, registered as a
    pytree, that defines `core_ndims`, `shape`, `matvec`, `transpose`, `as_dense` and `cost`. What
    is not an array per field (an operator made of operators) also defines `map_leaves`. Every
    solver takes it: where operators are multiplied, its matrices are. What it can do better stands
    on the class, too, and nowhere else.

    Attributes:
      closed: whether two of these, with the same static parts, have a product that is one of these,
        which `after` makes: a tree then multiplies them as they are.
      patterned: whether the product of two may be one of these, and may be too full for it.
      composes: whether there are products with other operators, and not with vectors alone.
      multilinear: whether its entries are sums of products of its numbers, as they stand, so that
        those of their absolute values bound it; a report then measures by them what rounding does.
      held_by: the structures that hold every one of these, the least first, and how it is brought
        there. `Dense` holds all, and is not named. The products with other structures are theirs.

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.operators import Factored
      >>> op = Factored.from_diagonal(jnp.ones((2, 2)), jnp.arange(10.0).reshape(5, 2))
      >>> op.shape, op.closed
      ((2, 2), False)
      >>> op.slice(3, 2).matvec(jnp.ones(2)).tolist()
      [[13.0, 13.0], [17.0, 17.0]]
      >>> op.take(4).transpose().as_dense().tolist()
      [[8.0, 8.0], [9.0, 9.0]]
    """

    closed: ClassVar[bool] = False
    patterned: ClassVar[bool] = False
    composes: ClassVar[bool] = True
    multilinear: ClassVar[bool] = False
    held_by: ClassVar[Mapping[type[Operator], Callable[[Any], Operator]]] = {}

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, int]:
        """(rows, cols) of one map."""

    @abc.abstractmethod
    def matvec(self, v: Array) -> Array:
        """A v for every map of the stack.

        Args:
          v: vectors (..., cols); the leading axes broadcast with the stack.

        Returns:
          (..., rows), in the common dtype of the operator and ``v``.

        Raises:
          ValueError: if ``v`` has another size or does not broadcast with the stack.
        """

    @property
    def in_turn(self) -> bool:
        """Whether the maps of a stack act one after the other, and never as one batch."""
        return False

    def of_each(self, f: Callable[..., PyTree], *stacked: PyTree) -> PyTree:
        """``f(one map, *values)`` of every map of the scanned axis, with its values, stacked.

        Example:
          >>> import jax.numpy as jnp
          >>> from parscan_bp.operators import Diagonal
          >>> op, v = Diagonal(jnp.array([[1.0], [2.0]])), jnp.ones((2, 1))
          >>> op.of_each(lambda one, v: one.matvec(v), v).tolist()
          [[1.0], [2.0]]
        """
        leaves, rebuild = self.unstack()
        one = lambda leaves, *values: f(rebuild(leaves), *values)  # noqa: E731
        return mapped(one, in_turn=self.in_turn)(leaves, *stacked)

    def matvec_and_aux(self, v: Array) -> tuple[Array, Any]:
        """A v, and what the map makes on the way that `System.collect` can use; mostly nothing."""
        return self.matvec(v), None

    @abc.abstractmethod
    def transpose(self) -> Operator:
        """A^T for every map: the plain transpose, complex entries are not conjugated."""

    @abc.abstractmethod
    def as_dense(self) -> Array:
        """The matrices (..., rows, cols), the leading axes being `stack_shape`."""

    @abc.abstractmethod
    def cost(self) -> Cost:
        """Of one `matvec` over the whole stack."""

    @property
    def structure(self) -> Structure:
        """What is known of it without its numbers."""
        return Structure(type(self))

    def after(self, first: Any) -> Operator:
        """The product A A' with the maps A' of ``first``, of the same class, which come first.

        Defined where the class is `closed`, or says what it `multiplies`.
        """
        raise NotImplementedError(
            f"{type(self).__name__} is closed=True, and wants a method after(first): its product"
        )

    def multiplies(self, first: Operator) -> bool:
        """Whether `after` makes the product with these maps: of a closed class, with its own."""
        return self.closed and same_structure(jax.tree.structure(self), jax.tree.structure(first))

    def product_flops(self, first: Any) -> int:
        """Flops of `after` for one map; by default each number meets those of a row."""
        return 2 * self.nnz * first.nnz // max(first.shape[0], 1)

    def product_shape(self, first: Any) -> Operator:
        """`after` with `jax.ShapeDtypeStruct` leaves, of operators whose leaves may be these."""
        return jax.eval_shape(lambda a, b: b.after(a), first, self)

    def scaled(self) -> Operator | None:
        """The same maps as a `Scaled`, where that is more than the exponents of the numbers of the
        least structure that can have them; ``None`` where it is not."""
        return None

    def unpacked(self) -> Operator:
        """The same maps as what products are made of, where that is another structure."""
        return self

    def rate(self, vectors: int) -> str:
        """The rate of a `planner.Machine` at which so many vectors are multiplied."""
        return "products"

    @property
    def entry_pattern(self) -> Pattern | None:
        """Where the entries are, if products with others of which that is known are made entry by
        entry."""
        return None

    def magnitude(self) -> Operator | None:
        """The operator of the absolute values of all numbers: at least |A|, entry by entry.

        What rounding is measured by; ``None`` where nothing is known, as of a structure that does
        not say that it is `multilinear`.

        Example:
          >>> import jax.numpy as jnp
          >>> from parscan_bp.operators import Dense
          >>> Dense(jnp.array([[1.0, -2.0]])).magnitude().matvec(jnp.ones(2)).tolist()
          [3.0]
        """

        def absolute(leaf, ndim):
            return jnp.abs(leaf) if jnp.issubdtype(leaf.dtype, jnp.inexact) else leaf

        return self.map_leaves(absolute) if self.multilinear else None

    @property
    def nnz(self) -> int:
        """Numbers of one map that are not zero by construction."""
        numbers = [
            leaf.shape[leaf.ndim - ndim :]
            for leaf, ndim in self.leaves()
            if jnp.issubdtype(leaf.dtype, jnp.inexact)
        ]
        return sum(map(math.prod, numbers))

    def check_vector(self, v: Array) -> None:
        """Raises `ValueError` unless ``v`` has the size and axes that `matvec` takes."""
        cols, stack = self.shape[1], self.stack_shape
        got = jnp.shape(v)
        try:
            fits = got[-1:] == (cols,) and np.broadcast_shapes(got[:-1], stack) is not None
        except ValueError:
            fits = False
        if not fits:
            raise ValueError(
                f"v: got shape {got}; {type(self).__name__}.matvec of {self.shape[0]}x{cols} maps "
                f"wants (..., {cols}) whose leading axes broadcast with the stack {stack}"
            )

    def cost_of(self, flops: int) -> Cost:
        """Of one `matvec` that takes ``flops`` for a single map."""
        maps = math.prod(self.stack_shape)
        vectors = maps * sum(self.shape) * self.dtype.itemsize
        return Cost(maps * flops, self.nbytes + vectors)

    def cost_over(self, stack: tuple[int, ...]) -> Cost:
        """Of one `matvec` as a part of an operator with a larger stack."""
        own, cost = math.prod(self.stack_shape), self.cost()
        repeats = math.prod(stack) // max(own, 1)
        return Cost(cost.flops * repeats, self.nbytes + (cost.bytes - self.nbytes) * repeats)
