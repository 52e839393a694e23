"""The operator interface: a stack of linear maps of one structure."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import jax.numpy as jnp
import numpy as np
from jax import lax

from parscan_bp.types import Array

OnLeaf = Callable[[Array, int], Any]
"""What `Operator.map_leaves` applies: (leaf, number of trailing axes of one map) -> new leaf."""


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


@dataclasses.dataclass(frozen=True, eq=False)
class Operator(abc.ABC):
    """A stack of linear maps v -> A v of one structure, abstract.

    In back-propagation A_t is the transposed Jacobian of step t (BPPSA section 3.1); nothing here
    depends on that. Every leaf array has *stack axes* in front and the *core axes* of one map
    behind; `core_ndims` says how many core axes each field has. Of the stack axes the first is the
    scanned one, batch axes follow. A leaf has no stack axes at all, and is then shared by the
    whole stack (the weights of a recurrent cell), or stack axes that broadcast with those of the
    other leaves by NumPy's rules. Vectors are arrays (..., n) whose leading axes broadcast with the
    stack in the same way.

    Concrete operators are frozen dataclasses registered as pytrees: the arrays are leaves, what is
    not an array is static. Construction refuses an array with too few axes; how the leaves' sizes
    fit together is checked when `shape` is first asked for, as JAX rebuilds pytrees with
    placeholders and with leaves that have additional axes.

    A new structure is one file with a subclass: `core_ndims`, `shape`, `matvec`, `transpose`,
    `as_dense` and `cost`. What is not an array per field (an operator made of operators) also
    defines `map_leaves`.

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.operators import Factored
      >>> op = Factored.from_diagonal(jnp.ones((2, 2)), jnp.arange(10.0).reshape(5, 2))
      >>> op.shape, op.stack_shape, op.length
      ((2, 2), (5,), 5)
      >>> op.slice(3, 2).matvec(jnp.ones(2)).tolist()
      [[13.0, 13.0], [17.0, 17.0]]
      >>> op.take(4).transpose().as_dense().tolist()
      [[8.0, 8.0], [9.0, 9.0]]
      >>> [leaf.shape for leaf, _ in op.broadcast(5).leaves()]
      [(5, 2, 2), (5, 1, 1, 2)]
    """

    core_ndims: ClassVar[Mapping[str, int]] = {}

    def __post_init__(self) -> None:
        for name, ndim in self.core_ndims.items():
            leaf = getattr(self, name)
            # A leaf without axes is a placeholder or a reduction, not yet an error.
            if 0 < getattr(leaf, "ndim", 0) < ndim:
                raise ValueError(_too_few_axes(self, leaf, ndim, name))

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

    def magnitude(self) -> Operator | None:
        """The operator of the absolute values of all numbers: at least |A|, entry by entry.

        What rounding is measured by. A structure whose entries are not sums of products of its
        numbers defines its own, or returns ``None`` where nothing is known.

        Example:
          >>> import jax.numpy as jnp
          >>> from parscan_bp.operators import Dense
          >>> Dense(jnp.array([[1.0, -2.0]])).magnitude().matvec(jnp.ones(2)).tolist()
          [3.0]
        """

        def absolute(leaf, ndim):
            return jnp.abs(leaf) if jnp.issubdtype(leaf.dtype, jnp.inexact) else leaf

        return self.map_leaves(absolute)

    @property
    def nnz(self) -> int:
        """Numbers of one map that are not zero by construction."""
        numbers = [
            leaf.shape[leaf.ndim - ndim :]
            for leaf, ndim in self.leaves()
            if jnp.issubdtype(leaf.dtype, jnp.inexact)
        ]
        return sum(map(math.prod, numbers))

    def map_leaves(self, f: OnLeaf) -> Self:
        """The operator with ``f(leaf, core_ndim)`` in place of every leaf."""
        leaves = {name: (getattr(self, name), ndim) for name, ndim in self.core_ndims.items()}
        changed = {name: f(*both) for name, both in leaves.items() if both[0] is not None}
        return dataclasses.replace(self, **changed)

    def leaves(self) -> list[tuple[Array, int]]:
        """Every leaf with its number of core axes, in the order of `map_leaves`.

        Raises:
          TypeError: if a leaf is not an array.
          ValueError: if a leaf has fewer axes than one map needs.
        """
        found: list[tuple[Array, int]] = []

        def note(leaf, ndim):
            if not hasattr(leaf, "shape"):
                raise TypeError(
                    f"{type(self).__name__}: a leaf is a {type(leaf).__name__}; "
                    f"an array with at least {ndim} axes is wanted"
                )
            if leaf.ndim < ndim:
                raise ValueError(_too_few_axes(self, leaf, ndim))
            found.append((leaf, ndim))
            return leaf

        self.map_leaves(note)
        return found

    @property
    def stack_shape(self) -> tuple[int, ...]:
        """The stack axes: the scanned one first, then batch axes; () if every leaf is shared.

        Raises:
          ValueError: if the leaves' stack axes do not broadcast.
        """
        stacks = [_stack(leaf, ndim) for leaf, ndim in self.leaves()]
        try:
            return np.broadcast_shapes(*stacks)
        except ValueError:
            raise ValueError(
                f"{type(self).__name__}: the leaves' stack axes {stacks} do not broadcast"
            ) from None

    @property
    def length(self) -> int | None:
        """Size of the scanned axis; ``None`` if every leaf is shared."""
        stack = self.stack_shape
        return stack[0] if stack else None

    @property
    def dtype(self) -> np.dtype:
        """Common dtype of the leaves."""
        return jnp.result_type(*[leaf.dtype for leaf, _ in self.leaves()])

    @property
    def nbytes(self) -> int:
        """Bytes of all leaves; a shared leaf counts once."""
        return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf, _ in self.leaves())

    def slice(self, start: int | Array, size: int) -> Self:
        """The maps ``start .. start + size`` of the scanned axis; shared leaves are untouched.

        Args:
          start: first map. May be traced; then, as in `jax.lax.dynamic_slice`, it is clamped so
            that the stretch lies inside the stack.
          size: number of maps, a Python int.

        Raises:
          ValueError: if the stretch does not lie inside the stack, as far as that is static.
        """
        length = self.length
        if length is not None:
            if not 0 <= size <= length:
                raise ValueError(f"size: got {size}; the stack has {length} maps")
            if _is_static(start) and not 0 <= start <= length - size:
                raise ValueError(f"start: got {start}; {size} maps of {length} are wanted")
        return self._on_scanned(lambda leaf: lax.dynamic_slice_in_dim(leaf, start, size, axis=0))

    def take(self, index: int | Array) -> Self:
        """One map of the scanned axis, which is dropped; batch axes stay.

        Args:
          index: which map. May be traced; it is then clamped to the stack.

        Raises:
          ValueError: if a static index lies outside the stack.
        """
        length = self.length
        if length is not None and _is_static(index):
            if not -length <= index < length:
                raise ValueError(f"index: got {index}; the stack has {length} maps")
            index = index % length
        return self._on_scanned(
            lambda leaf: lax.dynamic_index_in_dim(leaf, index, keepdims=False), single=_first
        )

    def unstack(self) -> tuple[list[Array], Callable[[list[Array]], Self]]:
        """What a loop over the maps carries along and what it closes over.

        Returns:
          ``(leaves, rebuild)``: the leaves that have the scanned axis, fit for the ``xs`` of
          `jax.lax.scan`, and the function from one entry of each to the operator of that step.

        Example:
          >>> import jax, jax.numpy as jnp
          >>> from parscan_bp.operators import Diagonal
          >>> leaves, rebuild = Diagonal(jnp.array([[1.0], [2.0], [3.0]])).unstack()
          >>> step = lambda v, leaves: (rebuild(leaves).matvec(v), None)
          >>> jax.lax.scan(step, jnp.ones(1), leaves)[0].tolist()
          [6.0]
        """
        scanned: list[Array] = []

        def note(leaf):
            scanned.append(leaf)
            return leaf

        self._on_scanned(note)

        def rebuild(leaves):
            each = iter(leaves)
            return self._on_scanned(lambda leaf: next(each), single=_first)

        return scanned, rebuild

    def broadcast(self, length: int) -> Self:
        """The stack with every leaf given every stack axis, the scanned one of size ``length``.

        A tree slices all leaves alike, so that none may be shared.

        Raises:
          ValueError: if the stack has another length.
        """
        if self.length not in (None, 1, length):
            raise ValueError(f"length: got {length}; the stack has {self.length} maps")
        stack = (length, *self.stack_shape[1:])
        return self.map_leaves(lambda leaf, ndim: jnp.broadcast_to(leaf, stack + _core(leaf, ndim)))

    def _on_scanned(self, f: Callable[[Array], Any], single: Callable | None = None) -> Self:
        """``f`` on the leaves that have the scanned axis, ``single`` where it has size 1 and
        broadcasts; the others are untouched."""
        stack = self.stack_shape

        def on_leaf(leaf, ndim):
            if not stack or leaf.ndim - ndim < len(stack):
                return leaf
            if leaf.shape[0] == 1 and stack[0] != 1:
                return leaf if single is None else single(leaf)
            return f(leaf)

        return self.map_leaves(on_leaf)

    def _check_vector(self, v: Array) -> None:
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

    def _cost(self, flops: int) -> Cost:
        """Of one matvec that takes ``flops`` for a single map."""
        maps = math.prod(self.stack_shape)
        vectors = maps * sum(self.shape) * self.dtype.itemsize
        return Cost(maps * flops, self.nbytes + vectors)

    def cost_over(self, stack: tuple[int, ...]) -> Cost:
        """Of one `matvec` as a part of an operator with a larger stack."""
        own, cost = math.prod(self.stack_shape), self.cost()
        repeats = math.prod(stack) // max(own, 1)
        return Cost(cost.flops * repeats, self.nbytes + (cost.bytes - self.nbytes) * repeats)


def _too_few_axes(op: Operator, leaf: Any, ndim: int, name: str = "a leaf") -> str:
    got = "is a scalar" if leaf.ndim == 0 else f"has shape {tuple(leaf.shape)}"
    wanted = "1 axis is" if ndim == 1 else f"{ndim} axes are"
    return (
        f"{type(op).__name__}: {name} {got}; at least {wanted} wanted, the last {ndim} being "
        "those of one map, even of order one"
    )


def _stack(leaf: Array, ndim: int) -> tuple[int, ...]:
    return tuple(leaf.shape[: leaf.ndim - ndim])


def _core(leaf: Array, ndim: int) -> tuple[int, ...]:
    return tuple(leaf.shape[leaf.ndim - ndim :])


def _first(leaf: Array) -> Array:
    return leaf[0]


def _is_static(index: Any) -> bool:
    return isinstance(index, (int, np.integer))
