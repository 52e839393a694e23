"""A scan's body that is a recurrent cell, and the linearisations that the cell itself states."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr

from parscan_bp.arguments import described
from parscan_bp.jaxprs.read import is_differentiable
from parscan_bp.jaxprs.replay import evaluate
from parscan_bp.linearise.base import Joined, Linearisation, LinearisationKind, Steps
from parscan_bp.linearise.products import ByProducts
from parscan_bp.measured import measured
from parscan_bp.operators import Operator
from parscan_bp.trees import eval_shape
from parscan_bp.types import Array, PyTree


@dataclasses.dataclass(frozen=True)
class CellBody:
    """A recurrent cell as the body of a scan.

    Attributes:
      cell: see `parscan_bp.cells.Cell`.
      const_of: for each leaf of the parameters, its position among the consts of the body, or
        ``None`` where the body does not use it.
      carry_of: for each leaf of the cell's carry, its position among the body's.
      trees: pytree structures of the parameters, the cell's carry and the input.
      arrange: linear function of the parameters to the cell's own; ``None`` if they are these.
      gates: part of the body, of the same inputs, that makes the cell's gates, too, where there is
        one. Its products may be others than the cell's, so it is for where the body is evaluated.
    """

    cell: Any
    const_of: tuple[int | None, ...]
    carry_of: tuple[int, ...]
    trees: tuple[Any, Any, Any]
    arrange: Callable[[PyTree], PyTree] | None = None
    gates: ClosedJaxpr | None = None

    def method(self, name: str) -> str:
        """A method of the cell, as errors name it."""
        return f"{type(self.cell).__name__}.{name}"

    @property
    def const_names(self) -> dict[int, str]:
        """The paths of the parameters, by their position among the consts of the body."""
        places = jax.tree.unflatten(self.trees[0], range(len(self.const_of)))
        paths = jax.tree.leaves_with_path(places)
        named = ((self.const_of[n], jax.tree_util.keystr(path)) for path, n in paths)
        return {k: name for k, name in named if k is not None}

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

    def pull_carry(
        self, steps: Steps, cts: Sequence[Array], *, beside_body: bool = False
    ) -> tuple[PyTree, list[Array]]:
        """Cotangents of the pre-activations and of the carry, A_t times those of the new carry.

        Args:
          steps: the stretch, or a single step.
          cts: cotangents of the new carry.
          beside_body: whether the body is evaluated at the same place: the gates are then its own.
        """
        params, carry, x, new_carry = self.values(steps)
        if beside_body and self.gates is not None:
            gates = evaluate(self.gates, [*steps.consts, *steps.carry, *steps.x])
        else:
            gates = self.cell.gates(params, carry, x, new_carry)
        u, carry_cts = self.cell.pull_carry(params, carry, gates, new_carry, self.own_carry(cts))
        leaves = zip(self.carry_leaves(carry_cts), steps.carry, strict=True)
        return u, [a.astype(c.dtype) for a, c in leaves]

    def pull_params(self, steps: Steps, u: PyTree, active) -> tuple[PyTree, list[Array]]:
        """Cotangents of the cell's parameters, summed, and of the active inputs of the body."""
        params, carry, x, _ = self.values(steps)
        param_cts, x_ct = self.cell.pull_params(params, carry, x, u)
        return param_cts if active.consts else [], self.x_cotangents(steps, x_ct, active)

    def x_cotangents(self, steps: Steps, x: PyTree, active) -> list[Array]:
        """The cell's cotangents of its input as those of the active inputs of the body.

        Raises:
          ValueError: if they have other shapes.
        """
        got, want = ([jnp.shape(a) for a in jax.tree.leaves(t)] for t in (x, steps.x))
        if len(got) != len(want) or any(got[k] != want[k] for k in active.x):
            raise ValueError(
                f"{self.method('pull_params')}: got cotangents of the input of shapes {got}; its "
                f"own, {want}, are wanted"
            )
        # A cotangent has the dtype of its primal, whatever the products were made in.
        leaves = zip(jax.tree.leaves(x), steps.x, strict=True)
        return active.of_x([a.astype(b.dtype) for a, b in leaves])

    def const_cotangents(self, consts, cts: PyTree, active) -> list[Array]:
        """The cell's cotangents of its parameters as those of the active consts of the body.

        Raises:
          ValueError: if the cell gives none of a parameter, or one of another shape; or if a const
            is no parameter.
        """
        if not active.consts:
            return []
        own = self._of_params(eval_shape(self.params, consts), cts)
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
                f"{self.method('pull_params')}: got no cotangent of the parameters "
                f"{', '.join(missing)}; one of each that the step uses is wanted"
            )
        for path, param in used:
            got = jnp.shape(given[path])
            if is_differentiable(param) and got != param.shape:
                raise ValueError(
                    f"{self.method('pull_params')}: got a cotangent of shape {got} of the "
                    f"parameter {jax.tree_util.keystr(path)}; {param.shape}, the sum over all "
                    "leading axes, is wanted"
                )
        return jax.tree.unflatten(tree, [given[path] for path, _ in used])


@dataclasses.dataclass(frozen=True)
class _ByCell(Linearisation):
    """What the cell's linearisations share: parameters and their cotangents are the cell's own.

    Attributes:
      of: the cell.
    """

    kind: ClassVar[LinearisationKind] = "analytic"

    of: CellBody

    @property
    def stated_pullback(self):
        # Of a cell with outputs of its own it may not be stated, see `unread`.
        return None if self.body.float_y else (self.of.method("pull_params"), self.of.const_names)

    def invariants(self, consts, extra):
        return self.of.params(consts)

    def pullback(self, steps, new_carry_cts, y_cts, active, aux=None):
        if active.y:  # a y of its own is not among the cell's cotangents
            return super().pullback(steps, new_carry_cts, y_cts, active)
        u = self.of.pull_carry(steps, new_carry_cts)[0] if aux is None else aux.all()
        return self.of.pull_params(steps, u, active)

    def unread(self, active):
        return active  # a cell with outputs of its own need not state `pull_params`

    def const_cotangents(self, consts, summed, active):
        if active.y:
            return summed
        return self.of.const_cotangents(consts, summed, active)


@dataclasses.dataclass(frozen=True)
class CellJacobian(_ByCell, Joined):
    """The explicit Jacobian that a cell states, for solvers that multiply Jacobians."""

    @property
    def origin(self):
        return self.of.method("jacobian")

    def pack(self, leaves, *, cotangent):
        return super().pack(jax.tree.leaves(self.of.own_carry(leaves)), cotangent=cotangent)

    def unpack(self, vector, *, cotangent):
        return self.of.carry_leaves(super().unpack(vector, cotangent=cotangent))

    def adjoint_operator(self, steps, active=None):
        operator = self.of.jacobian(steps)
        if not isinstance(operator, Operator):
            raise TypeError(f"{self.origin}: got {described(operator)}; an Operator is wanted")
        return operator.aligned(len(self.layout.batch_shape))


@dataclasses.dataclass(frozen=True)
class CellProducts(_ByCell, ByProducts):
    """Matrix-free by the products that a cell states, for the sequential sweep.

    Attributes:
      beside_body: see `CellBody.pull_carry`.
    """

    beside_body: bool = False

    @property
    def origin(self):
        return self.of.method("pull_carry")

    def most_beside(self, *, cotangent):
        # Beside the products with weights only the number of operations counts, and soon the copy.
        if cotangent:
            return measured("cpu")["carried_beside"]["cell"]
        return super().most_beside(cotangent=cotangent)

    def answered(self):
        return self, None  # the cell states what its derivative is

    def restricted(self, carry):
        # The cell states products of the whole carry only.
        return ByProducts(self.body.restricted(carry), one_function=self.one_function)

    @functools.cached_property
    def beside_forward(self):
        return dataclasses.replace(self, beside_body=True)

    def _pulled(self, step, active, v):
        u, carry = self.of.pull_carry(step, v, beside_body=self.beside_body)
        return carry, u, []

    def _pushed(self, step, v):
        pull = lambda v: self.of.pull_carry(step, v)[1]  # noqa: E731
        return jax.linear_transpose(pull, v)(v)[0], []
