"""Block bi-diagonal systems: what every solver solves.

With transposed Jacobians A_t = (d x_t / d x_{t-1})^T, t = 1..n, and the direct
cotangents g_t, t = 0..n, back-propagation is the upper block bi-diagonal system

    lambda_n = g_n,    lambda_{t-1} = g_{t-1} + A_t lambda_t          (BPPSA eq. 3)

(Naumov, "Parallel complexity of forward and backward propagation", eq. 14, as
``R lambda = g``). Its transpose, the lower system, is forward-mode.

A solver sees the system as steps that it *traverses*. The step at position t turns
the state that enters it into the state that leaves it, and shows one vector on the way:

    shown_t = entering_t + state,     state <- M_t shown_t + leaving_t

For the upper system M_t = A_t, the traversal runs from the last step to the first, and
shown_t is lambda_t: each step needs its own A_t only, so nothing is shifted and no copy
is made. For the lower system M_t is the Jacobian, and shown_t is the tangent that
enters step t.

Sources: Wang, Bai, Pekhimenko, "BPPSA: Scaling back-propagation by parallel scan
algorithm", MLSys 2020, sections 2 and 3.1; M. Naumov, 2017, section 3.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from parscan_bp.arguments import as_int, check_array, described
from parscan_bp.operators import Operator
from parscan_bp.trees import eval_shape, stretch
from parscan_bp.types import Array, PyTree


@dataclasses.dataclass(frozen=True)
class Block:
    """A stretch of steps, made explicit.

    Attributes:
      operator: the stack of maps M_t, `Operator.aligned` with the batch axes of the states.
      entering: added to the state before M_t, stacked; ``None`` means zero.
      leaving: added after M_t, stacked; ``None`` means zero.
    """

    operator: Operator
    entering: PyTree = None
    leaving: PyTree = None


class System(abc.ABC):
    """A linearised chain of ``length`` equal steps, made explicit a stretch at a time."""

    @property
    @abc.abstractmethod
    def length(self) -> int:
        """Number of steps."""

    @property
    @abc.abstractmethod
    def backward(self) -> bool:
        """Whether the traversal runs from position ``length - 1`` down to 0."""

    @property
    def adjoint(self) -> bool:
        """Whether its states are cotangents: the traversal runs against the order of steps."""
        return True

    @property
    def in_turn(self) -> bool:
        """Whether steps are made explicit one after the other, and stretches likewise."""
        return False

    @abc.abstractmethod
    def block(self, start: int | Array, size: int) -> Block:
        """The steps ``start .. start + size``; ``start`` may be traced."""

    @abc.abstractmethod
    def collect(
        self, start: int | Array, shown: PyTree, state: PyTree, aux: PyTree = None
    ) -> tuple[PyTree, PyTree]:
        """What a stretch contributes once its shown vectors are known.

        Args:
          start: first position of the stretch.
          shown: the shown vectors, stacked.
          state: the state that leaves the stretch.
          aux: the second results of `Operator.matvec_and_aux`, stacked; what they would have
            told is made again where they are missing.

        Returns:
          ``(summed, stacked)``: one part that is summed over all steps (parameter
          cotangents), one that has an entry per step (input cotangents).
        """


@dataclasses.dataclass(frozen=True)
class Uniform(System):
    """A system whose operators are already in memory, all of one shape.

    ``lambda[t] = g[t] + A[t] lambda[t + 1]`` for t = n-1..0 and ``lambda[n] = g[n]``,
    where ``A[t]`` is the transposed Jacobian of step t+1.

    Args:
      operators: stack of n operators; the scanned axis leads, batch axes follow. Operators, or some
        of their arrays, that the whole batch shares lack batch axes or have them of size 1; kept
        here `Operator.aligned`. Arrays that all steps share have no axes in front of their own, or
        a scanned one of size 1.
      g: cotangents of shape ``(n + 1, *batch, features)``.

    Raises:
      TypeError: if ``operators`` is no operator or ``g`` no array.
      ValueError: if the stack has no scanned axis, or arrays whose leading axes have neither n
        entries nor one; if it is not square, or ``g`` does not have one entry more than the stack,
        or other batch axes.

    Example:
      >>> import jax.numpy as jnp, parscan_bp as pb
      >>> from parscan_bp.operators import Diagonal
      >>> system = pb.Uniform(Diagonal(jnp.full((3, 2), 0.5)), jnp.ones((4, 2)))
      >>> pb.solve(system, solver=pb.Sweep())[0].tolist()
      [1.875, 1.875]
    """

    operators: Operator
    g: Array

    def __post_init__(self):
        if not isinstance(self.operators, Operator):
            raise TypeError(
                f"operators: got {described(self.operators)}; a stack of operators, such as "
                "Dense(array), is wanted"
            )
        check_array("g", self.g, "an array (n + 1, *batch, features) is wanted")
        rows, cols = self.operators.shape
        if rows != cols:
            raise ValueError(
                f"operators: a uniform system needs square operators, got {rows}x{cols}; "
                "use Ragged for layers of different sizes"
            )
        operators = self.operators.aligned(self.g.ndim - 2)
        n = operators.length
        if n is None:
            raise ValueError(
                "operators: every leaf is shared, so the number of steps is unknown; "
                "give at least one leaf a leading scanned axis"
            )
        if self.g.ndim < 2 or self.g.shape[0] != n + 1 or self.g.shape[-1] != cols:
            raise ValueError(
                f"g: got shape {self.g.shape}; {n} operators of {rows}x{cols} need "
                f"({n + 1}, *batch, {cols}): one cotangent for every x_0..x_{n}"
            )
        batch, own = self.g.shape[1:-1], operators.stack_shape[1:]
        if not broadcasts(own, to=batch):
            raise ValueError(
                f"g: got batch axes {batch}; the operators have {own}, which do not broadcast to "
                "them"
            )
        object.__setattr__(self, "operators", operators)

    @property
    def length(self) -> int:
        return self.g.shape[0] - 1

    @property
    def backward(self) -> bool:
        return True

    def block(self, start, size):
        return Block(self.operators.slice(start, size), stretch(self.g, start + 1, size))

    def collect(self, start, shown, state, aux=None):
        return None, shown

    def as_dense(self) -> np.ndarray:
        """R of ``R lambda = g`` as a matrix of order (n+1) * features, without batch axes."""
        a, stack = np.asarray(self.operators.as_dense()), self.operators.stack_shape
        if math.prod(stack[1:]) != 1:
            raise ValueError(f"as_dense: operators have batch axes, {a.shape}; index them first")
        return _bidiagonal(list(a.reshape(self.length, *a.shape[-2:])))


@dataclasses.dataclass(frozen=True)
class Ragged:
    """A system whose operators have different shapes: layers of different sizes.

    ``lambda[t] = g[t] + A[t] lambda[t + 1]`` as for `Uniform`, with ``A[t]`` of shape
    ``(size of x_t, size of x_{t+1})``.

    Args:
      operators: n operators without scanned axis; batch axes may lead.
      g: n + 1 cotangents, ``g[t]`` of shape ``(*batch, size of x_t)``; ``None`` means zero, as
        where the loss sees x_n alone.
      wanted: positions t of the lambda_t that somebody reads; a solver may return ``None`` for the
        others. ``None`` is all.

    Raises:
      TypeError: if ``operators`` is no sequence of operators, ``g`` none of arrays and ``None``, or
        ``wanted`` none of ints.
      ValueError: if a position in ``wanted`` is none; if batch axes do not broadcast;
        naming the first place where the sizes do not fit; if ``g[n]`` is ``None``.
    """

    operators: Sequence[Operator]
    g: Sequence[Array | None]
    wanted: Sequence[int] | None = None

    def __post_init__(self):
        self._check_kinds()
        if len(self.g) != len(self.operators) + 1:
            raise ValueError(
                f"g: got {len(self.g)} cotangents for {len(self.operators)} operators; "
                "one for every x_0..x_n is wanted"
            )
        if self.g[-1] is None:
            raise ValueError(f"g[{len(self.g) - 1}]: got None; the last cotangent is wanted")
        for t, a in enumerate(self.operators):
            want = (self._size(t), self._size(t + 1))
            if tuple(a.shape) != want:
                sizes = " and ".join(self._told(k) for k in (t, t + 1))
                raise ValueError(
                    f"operators[{t}]: got {a.shape[0]}x{a.shape[1]}, but {sizes}: "
                    f"{want[0]}x{want[1]} is wanted"
                )
        self._check_batch()

    def _check_kinds(self) -> None:
        for name in ("operators", "g"):
            value = getattr(self, name)
            if isinstance(value, str) or not isinstance(value, Sequence):
                raise TypeError(f"{name}: got {described(value)}; a list or tuple is wanted")
        for t, a in enumerate(self.operators):
            if not isinstance(a, Operator):
                raise TypeError(f"operators[{t}]: got {described(a)}; an operator is wanted")
        for t, v in enumerate(self.g):
            if v is not None:
                check_array(f"g[{t}]", v, "an array (*batch, features) or None is wanted")
                if not v.shape:
                    raise ValueError(f"g[{t}]: got a scalar; an array (*batch, features) is wanted")
        if self.wanted is not None:
            object.__setattr__(self, "wanted", _positions("wanted", self.wanted, len(self.g)))

    def _check_batch(self) -> None:
        batches = [a.stack_shape for a in self.operators]
        batches += [tuple(v.shape[:-1]) for v in self.g if v is not None]
        try:
            np.broadcast_shapes(*batches)
        except ValueError:
            raise ValueError(
                f"g: the batch axes of operators and cotangents, {sorted(set(batches))}, do not "
                "broadcast"
            ) from None

    def _told(self, t: int) -> str:
        if self.g[t] is None:
            return f"operators[{t}] has {self._size(t)} rows"
        return f"g[{t}] has {self._size(t)} entries"

    def _size(self, t: int) -> int:
        g = self.g[t]
        return self.operators[t].shape[0] if g is None else g.shape[-1]

    @property
    def length(self) -> int:
        return len(self.operators)

    def as_dense(self) -> np.ndarray:
        """R of ``R lambda = g`` as a matrix, without batch axes."""
        return _bidiagonal([np.asarray(a.as_dense()) for a in self.operators])


def broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Whether arrays of one shape broadcast to another one, and that stays as it is."""
    try:
        return np.broadcast_shapes(shape, to) == to
    except ValueError:
        return False


def _positions(name: str, values: Any, count: int) -> tuple[int, ...]:
    """Positions among ``count``, as ints."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{name}: got {described(values)}; a sequence of positions is wanted")
    positions = tuple(as_int(f"{name}[{k}]", t, 0) for k, t in enumerate(values))
    if max(positions, default=0) >= count:
        raise ValueError(f"{name}: got {max(positions)}; positions below {count} are wanted")
    return positions


def _bidiagonal(blocks: list[np.ndarray]) -> np.ndarray:
    sizes = [b.shape[0] for b in blocks] + [blocks[-1].shape[1]]
    edges = np.concatenate([[0], np.cumsum(sizes)])
    dense = np.eye(edges[-1], dtype=np.result_type(*blocks))
    for t, b in enumerate(blocks):
        rows, cols = slice(edges[t], edges[t + 1]), slice(edges[t + 1], edges[t + 2])
        dense[rows, cols] = -b
    return dense


def block_shape(system: System, size: int) -> Block:
    """The shapes and dtypes of a block of ``size`` steps, without computing it."""

    def parts():
        block = system.block(0, size)
        return block.operator, block.entering, block.leaving

    return Block(*eval_shape(parts))


def zeros_of_shape(tree: PyTree) -> PyTree:
    """Zeros for a tree of shapes and dtypes; varying over the same manual mesh axes."""
    return jax.tree.map(jnp.zeros_like, tree)
