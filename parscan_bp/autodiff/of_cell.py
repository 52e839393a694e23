"""A scan's body that is a recurrent cell, and the linearisations that the cell itself states."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
from jax.tree_util import Partial

from parscan_bp.autodiff.linearise import ByProducts, Joined, Steps, transpose_of
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

    def values(self, steps: Steps) -> tuple[PyTree, PyTree, PyTree, PyTree]:
        """Parameters, carry, input and new carry as the cell knows them."""
        params = self._params(steps)
        return (
            params if self.arrange is None else self.arrange(params),
            self.own_carry(steps.carry),
            jax.tree.unflatten(self.trees[2], steps.x),
            self.own_carry(steps.new_carry),
        )

    def _params(self, steps: Steps) -> PyTree:
        leaves = [None if k is None else steps.consts[k] for k in self.const_of]
        return jax.tree.unflatten(self.trees[0], leaves)

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

    def pullback(self, steps, new_carry_cts, active) -> tuple[list[Array], list[Array]]:
        """As `Linearisation.pullback`, for a body without outputs of its own."""
        cts = self.own_carry(new_carry_cts)
        params, _, x = self.cell.pullback(*self.values(steps), cts)
        return self.active_cotangents(steps, params, x, active)

    def active_cotangents(self, steps, params, x, active) -> tuple[list[Array], list[Array]]:
        """Cotangents of the cell's parameters and input as those of the body's."""
        if self.arrange is not None:
            (params,) = jax.vjp(self.arrange, self._params(steps))[1](params)
        by_const = dict(zip(self.const_of, jax.tree.leaves(params), strict=True))
        # A cotangent has the dtype of its primal, whatever the products were made in.
        consts = [by_const[k].astype(steps.consts[k].dtype) for k in active.consts]
        xs = [a.astype(b.dtype) for a, b in zip(jax.tree.leaves(x), steps.x, strict=True)]
        return consts, active.of_x(xs)


@dataclasses.dataclass(frozen=True)
class CellJacobian(Joined):
    """The explicit Jacobian that a cell states, for solvers that multiply Jacobians."""

    of: OfCell

    def pack(self, leaves, *, cotangent):
        return super().pack(jax.tree.leaves(self.of.own_carry(leaves)), cotangent=cotangent)

    def unpack(self, vector, *, cotangent):
        return self.of.carry_leaves(super().unpack(vector, cotangent=cotangent))

    def adjoint_operator(self, steps):
        return self.of.jacobian(steps)

    def pullback(self, steps, new_carry_cts, y_cts, active):
        if active.y:  # a y of its own is not in the cell's pullback
            return super().pullback(steps, new_carry_cts, y_cts, active)
        return self.of.pullback(steps, new_carry_cts, active)


@dataclasses.dataclass(frozen=True)
class CellProducts(ByProducts):
    """Matrix-free by the products that a cell states, for the sequential sweep."""

    of: OfCell

    # Beside the product with its weights the copy is small for longer.
    small_cotangent: ClassVar[int] = 2**11

    def _map(self, step, shapes, transposed):
        pull = Partial(_pull(self.of), step)
        return pull if transposed else Partial(transpose_of(shapes), pull)

    def pullback(self, steps, new_carry_cts, y_cts, active):
        if active.y:
            return super().pullback(steps, new_carry_cts, y_cts, active)
        return self.of.pullback(steps, new_carry_cts, active)


def _pull(of: OfCell):
    return lambda step, v: of.to_carry(step, v)
