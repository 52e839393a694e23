"""Arrays with stack axes in front: how a stack is measured, cut, walked through and rebuilt."""

from __future__ import annotations

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


@dataclasses.dataclass(frozen=True, eq=False)
class Stacked:
    """A dataclass of arrays that are stacked alike.

    Every leaf array has *stack axes* in front and the *core axes* of one entry behind;
    `core_ndims` says how many core axes each field has. Of the stack axes the first is the scanned
    one, batch axes follow. A leaf has no stack axes at all, and is then shared by the whole stack
    (the weights of a recurrent cell), or all of them, of size 1 along those that share it. Where
    one has fewer, its own shape does not say which; `aligned` takes it to have the scanned one, and
    what walks along that axis refuses it. Of single maps all are batch axes, and broadcast by
    NumPy's rules.

    Concrete classes are frozen dataclasses registered as pytrees: the arrays are leaves, what is
    not an array is static. Construction refuses an array with too few axes; how the leaves' sizes
    fit together is checked when they are first needed, as JAX rebuilds pytrees with placeholders
    and with leaves that have additional axes.

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.operators import Factored
      >>> op = Factored.from_diagonal(jnp.ones((2, 2)), jnp.arange(10.0).reshape(5, 2))
      >>> op.stack_shape, op.length
      ((5,), 5)
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

    def aligned(self, batch: int = 0) -> Self:
        """The stack with at least so many batch axes, all in every leaf that has stack axes.

        The scanned axis leads in each of them. Batch axes that it lacks are those after it, and
        have size 1: what changes from step to step and is shared by a batch is never taken for
        what changes along the batch, whatever their sizes. With as many as the vectors have, all
        broadcasting that follows is of equal ranks.

        Args:
          batch: batch axes of the vectors.

        Example:
          >>> import jax.numpy as jnp
          >>> from parscan_bp.operators import Dense, Diagonal, Product
          >>> op = Product((Dense(jnp.ones((5, 2, 2))), Diagonal(jnp.ones((5, 3, 2)))))
          >>> [leaf.shape for leaf, _ in op.aligned().leaves()]
          [(5, 1, 2, 2), (5, 3, 2)]
          >>> op.aligned().stack_shape
          (5, 3)
        """
        rank = max([batch + 1, *(leaf.ndim - ndim for leaf, ndim in self.leaves())])

        def on_leaf(leaf, ndim):
            own = leaf.ndim - ndim
            return jnp.expand_dims(leaf, range(1, 1 + rank - own)) if 0 < own < rank else leaf

        return self.map_leaves(on_leaf)

    @property
    def _scanned_shape(self) -> tuple[int, ...]:
        """`stack_shape`, of which the first is the scanned axis.

        Raises:
          ValueError: if a leaf has some stack axes and not all.
        """
        stacks = {_stack(leaf, ndim) for leaf, ndim in self.leaves()} - {()}
        if len({len(stack) for stack in stacks}) > 1:
            raise ValueError(
                f"{type(self).__name__}: the leaves have stack axes {sorted(stacks, key=len)}; all "
                "of them or none are wanted in each, of size 1 where it is shared along one. "
                "op.aligned() adds batch axes where the scanned axis leads in each"
            )
        return self.stack_shape

    @property
    def length(self) -> int | None:
        """Size of the scanned axis; ``None`` if every leaf is shared."""
        stack = self._scanned_shape
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
        stack = (length, *self._scanned_shape[1:])
        return self.map_leaves(lambda leaf, ndim: jnp.broadcast_to(leaf, stack + _core(leaf, ndim)))

    def _on_scanned(self, f: Callable[[Array], Any], single: Callable | None = None) -> Self:
        """``f`` on the leaves that have the scanned axis, ``single`` where it has size 1 and
        broadcasts; the others are untouched."""
        stack = self._scanned_shape

        def on_leaf(leaf, ndim):
            if leaf.ndim == ndim:
                return leaf
            if leaf.shape[0] == 1 and stack[0] != 1:
                return leaf if single is None else single(leaf)
            return f(leaf)

        return self.map_leaves(on_leaf)


def _too_few_axes(op: Stacked, leaf: Any, ndim: int, name: str = "a leaf") -> str:
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
