"""A scan's body that is a recurrent cell, and the linearisations that the cell itself states."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
from jax.tree_util import Partial

from parscan_bp.autodiff.linearise import (
    ByProducts,
    Joined,
    Linearisation,
    Steps,
    transpose_of,
)
from parscan_bp.operators import Operator
from parscan_bp.types import Array, PyTree


@dataclasses.dataclass(frozen=True)
class OfCell:
    """A recurrent cell as the body of a scan.

    Attributes:
      cell: see `parscan_bp.cells.Cell`.
      const_of: for each leaf of the parameters, its position among the consts of the body, or
        ``None`` where the body does not use it.
      carry_of: for each leaf of the cell's carry, its position among the body's.
      trees: pytree structures of the parameters, the cell's carry and the input.
      arrange: linear function of the parameters to the cell's own; ``None`` if they are these.
    """

    cell: Any
    const_of: tuple[int | None, ...]
    carry_of: tuple[int, ...]
    trees: tuple[Any, Any, Any]
    arrange: Callable[[PyTree], PyTree] | None = None

    def params(self, consts: Sequence[Array]) -> PyTree:
        """The cell's parameters from the consts of the body."""
        params = self._body_params(consts)
        return params if self.arrange is None else self.arrange(params)

    def _body_params(self, consts: Sequence[Array]) -> PyTree:
        leaves = [None if k is None else consts[k] for k in self.const_of]
        return jax.tree.unflatten(self.trees[0], leaves)

    def values(self, steps: Steps) -> tuple[PyTree, PyTree, PyTree, PyTree]:
        """Parameters, carry, input and new carry as the cell knows them."""
        return (
            steps.extra,
            self.own_carry(steps.carry),
            jax.tree.unflatten(self.trees[2], steps.x),
            self.own_carry(steps.new_carry),
        )

    def own_carry(self, leaves: Sequence[Array]) -> PyTree:
        """The cell's carry from the body's leaves."""
        return jax.tree.unflatten(self.trees[1], [leaves[k] for k in self.carry_of])

    def carry_leaves(self, carry: PyTree) -> list[Array]:
        """The inverse of `own_carry`."""
        by_position = dict(zip(self.carry_of, jax.tree.leaves(carry), strict=True))
        return [by_position[k] for k in range(len(by_position))]

    def jacobian(self, steps: Steps) -> Operator:
        return self.cell.jacobian(*self.values(steps))

    def to_carry(self, steps: Steps, cts: Sequence[Array]) -> list[Array]:
        """A_t times the cotangents of the new carry."""
        carry = self.cell.pullback(*self.values(steps), self.own_carry(cts))[1]
        leaves = zip(self.carry_leaves(carry), steps.carry, strict=True)
        return [a.astype(c.dtype) for a, c in leaves]

    def pullback(self, steps, new_carry_cts, active) -> tuple[PyTree, list[Array]]:
        """Cotangents of the cell's parameters, summed, and of the active inputs of the body."""
        cts = self.own_carry(new_carry_cts)
        params, _, x = self.cell.pullback(*self.values(steps), cts)
        return params if active.consts else [], self.x_cotangents(steps, x, active)

    def x_cotangents(self, steps: Steps, x: PyTree, active) -> list[Array]:
        """The cell's cotangents of its input as those of the active inputs of the body."""
        # A cotangent has the dtype of its primal, whatever the products were made in.
        leaves = zip(jax.tree.leaves(x), steps.x, strict=True)
        return active.of_x([a.astype(b.dtype) for a, b in leaves])

    def const_cotangents(self, consts, cts: PyTree, active) -> list[Array]:
        """The cell's cotangents of its parameters as those of the active consts of the body.

        Raises:
          ValueError: if the cell gives none of a parameter, or a const is no parameter.
        """
        if not active.consts:
            return []
        own = self._of_params(jax.eval_shape(self.params, consts), cts)
        if self.arrange is not None:
            (own,) = jax.vjp(self.arrange, self._body_params(consts))[1](own)
        used = [k for k in self.const_of if k is not None]
        by_const = dict(zip(used, jax.tree.leaves(own), strict=True))
        closed_over = [k for k in active.consts if k not in by_const]
        if closed_over:
            raise ValueError(
                f"{type(self.cell).__name__}: got derivatives by {len(closed_over)} arrays that "
                "its step closes over; they are wanted among its parameters"
            )
        return [by_const[k].astype(consts[k].dtype) for k in active.consts]

    def _of_params(self, params: PyTree, cts: PyTree) -> PyTree:
        """Of the cotangents that the cell gives, those of ``params``, which its step uses."""
        given = dict(jax.tree.leaves_with_path(cts))
        used, tree = jax.tree.flatten_with_path(params)
        missing = [jax.tree_util.keystr(path) for path, _ in used if path not in given]
        if missing:
            raise ValueError(
                f"{type(self.cell).__name__}.pullback: got no cotangent of the parameters "
                f"{', '.join(missing)}; one of each that the step uses is wanted"
            )
        return jax.tree.unflatten(tree, [given[path] for path, _ in used])


@dataclasses.dataclass(frozen=True)
class _OfCell(Linearisation):
    """What the cell's linearisations share: parameters and their cotangents are the cell's own.

    Attributes:
      of: the cell.
    """

    of: OfCell

    def invariants(self, consts, extra):
        return self.of.params(consts)

    def pullback(self, steps, new_carry_cts, y_cts, active):
        if active.y:  # a y of its own is not in the cell's pullback
            return super().pullback(steps, new_carry_cts, y_cts, active)
        return self.of.pullback(steps, new_carry_cts, active)

    def const_cotangents(self, consts, summed, active):
        if active.y:
            return summed
        return self.of.const_cotangents(consts, summed, active)


@dataclasses.dataclass(frozen=True)
class CellJacobian(_OfCell, Joined):
    """The explicit Jacobian that a cell states, for solvers that multiply Jacobians."""

    def pack(self, leaves, *, cotangent):
        return super().pack(jax.tree.leaves(self.of.own_carry(leaves)), cotangent=cotangent)

    def unpack(self, vector, *, cotangent):
        return self.of.carry_leaves(super().unpack(vector, cotangent=cotangent))

    def adjoint_operator(self, steps):
        return self.of.jacobian(steps)


@dataclasses.dataclass(frozen=True)
class CellProducts(_OfCell, ByProducts):
    """Matrix-free by the products that a cell states, for the sequential sweep."""

    # Beside the product with its weights the copy is small for longer.
    small_cotangent: ClassVar[int] = 2**11

    def _map(self, step, shapes, transposed):
        pull = Partial(_pull(self.of), step)
        return pull if transposed else Partial(transpose_of(shapes), pull)


def _pull(of: OfCell):
    return lambda step, v: of.to_carry(step, v)
