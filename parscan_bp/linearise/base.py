"""From a step to its transposed Jacobian: what every way of obtaining it answers.

A *linearisation* answers three questions about a stretch of steps: what vector the
carry becomes (`pack`, `unpack`), what operator acts on it (`adjoint_operator`,
`tangent_operator`), and what the parameters and inputs receive (`pullback`). It never
sees a solver.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Literal

import jax

from parscan_bp.linearise.answered import Answered
from parscan_bp.linearise.body import Active, Body
from parscan_bp.linearise.layout import CarryLayout
from parscan_bp.linearise.linear_step import LinearStep
from parscan_bp.operators import Operator
from parscan_bp.types import Array, PyTree

LinearisationKind = Literal["matrix-free", "columns", "analytic"]
"""See `Linearisation`."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Steps:
    """The values at which a stretch of steps is linearised; all but ``consts`` stacked.

    Attributes:
      consts: loop-invariant values of the body.
      carry: the carry that enters each step.
      x: the input of each step.
      new_carry: the carry that leaves each step.
      extra: `Linearisation.invariants`.
    """

    consts: Sequence[Array]
    carry: Sequence[Array]
    x: Sequence[Array]
    new_carry: Sequence[Array]
    extra: PyTree = ()

    @property
    def shared_and_own(self) -> tuple[PyTree, PyTree]:
        """What all steps share, and what each has of its own."""
        own = (list(self.carry), list(self.x), list(self.new_carry))
        return (list(self.consts), self.extra), own


class Linearisation(abc.ABC):
    """How the Jacobian of a body with respect to its carry is obtained.

    Attributes:
      kind: where it comes from: JAX's own linearisation ("matrix-free"), one tangent per column
        ("columns"), or what a cell or the caller states ("analytic").
      is_products: whether its operators are known by their products with vectors alone.
      can_keep: whether a forward pass can keep residuals for it, see `Residuals`.
      diagonal: whether its operators are taken to be diagonal.
      body: the step.
    """

    kind: ClassVar[LinearisationKind]
    is_products: ClassVar[bool] = False
    can_keep: ClassVar[bool] = False
    diagonal: bool = False
    body: Body

    def pack(self, leaves: Sequence[Array], *, cotangent: bool) -> PyTree:
        """Float carry leaves as the vector that the operators act on."""
        return list(leaves)

    def unpack(self, vector: PyTree, *, cotangent: bool) -> list[Array]:
        """The inverse of `pack`."""
        return vector

    def invariants(self, consts: Sequence[Array], extra: Sequence[Array]) -> PyTree:
        """What the linearisation of every step shares, made once, before any loop.

        Args:
          consts: loop-invariant values of the body.
          extra: values that a given Jacobian closes over.
        """
        return extra

    def answered(self) -> tuple[Linearisation, Answered | None]:
        """The same that reads the answers of the step, where there are any."""
        return self, None

    def for_one_function(self) -> Linearisation:
        """The same for a loop that is one function, see `Solver.one_function`."""
        return self

    def restricted(self, carry: tuple[int, ...]) -> Linearisation | None:
        """The same for these carry leaves alone; ``None`` if it knows them all together only."""
        return None

    def after_derivative(self, moving: tuple[int, ...]) -> Linearisation:
        """That of the step as `Body.after_derivative`; itself, if it states the derivative."""
        return self

    @property
    def origin(self) -> str:
        """What states its operators, as errors name it."""
        return "jacobian"

    @property
    def stated_pullback(self) -> tuple[str, dict[int, str]] | None:
        """What states its `pullback` and, by position, the names of the consts that are asked for;
        ``None`` if it is derived."""
        return None

    @abc.abstractmethod
    def adjoint_operator(self, steps: Steps, active: Active | None = None) -> Operator:
        """The stack of transposed Jacobians A_t.

        Args:
          steps: where.
          active: what `pullback` will be asked for; its ``aux`` is what the operator makes for it.
        """

    def linear_step(
        self, shared: PyTree, own: PyTree, active: Active | None, *, cotangent: bool
    ) -> LinearStep | None:
        """The map of one step as two programs; ``None`` where it is formed.

        Args:
          shared, own: of `Steps.shared_and_own`, of one step; or their types.
          active: see `adjoint_operator`.
          cotangent: whether it is the transposed one.
        """
        return None

    def tangent_operator(self, steps: Steps) -> Operator:
        """The stack of Jacobians."""
        return self.adjoint_operator(steps).transpose()

    def pullback(
        self,
        steps: Steps,
        new_carry_cts: Sequence[Array],
        y_cts: Sequence[Array],
        active: Active,
        aux: PyTree = None,
    ) -> tuple[PyTree, list[Array]]:
        """Cotangents of the active consts (summed) and of the active inputs (stacked).

        One batched vector-Jacobian product over the stretch: with every lambda known, the
        parameter gradients (BPPSA eq. 2) have no dependency along it.

        Args:
          steps: the stretch.
          new_carry_cts: lambda, for each float leaf of the carry.
          y_cts: cotangents of the active outputs.
          active: what is differentiated.
          aux: what `adjoint_operator` makes beside its products, where it makes anything.
        """

        def outputs(consts, xs):
            return self.body.mapped(
                lambda c, x, xs: self._float_outputs(
                    active.insert_consts(steps.consts, consts), c, active.insert_x(x, xs), active
                ),
            )(list(steps.carry), list(steps.x), xs)

        consts, xs = active.of_consts(steps.consts), active.of_x(steps.x)
        _, vjp = jax.vjp(outputs, consts, xs)
        return vjp((list(new_carry_cts), list(y_cts)))

    def unread(self, active: Active) -> Active:
        """What is differentiated where nothing reads the outputs."""
        return dataclasses.replace(active, y=())

    def const_cotangents(
        self, consts: Sequence[Array], summed: PyTree, active: Active
    ) -> list[Array]:
        """Cotangents of the active consts, from the sum of all that `pullback` returned first."""
        return summed

    def _float_outputs(self, consts, carry, x, active):
        new, y = self.body(consts, carry, x)
        return [new[k] for k in self.body.float_carry], [y[j] for j in active.y]


@dataclasses.dataclass(frozen=True)
class Joined(Linearisation):
    """Base of the linearisations whose operators act on one joined vector.

    Attributes:
      body: the scan body.
      layout: how carry leaves are joined.
    """

    body: Body
    layout: CarryLayout

    def pack(self, leaves, *, cotangent):
        return self.layout.join(leaves, cotangent=cotangent)

    def unpack(self, vector, *, cotangent):
        return self.layout.split(vector, cotangent=cotangent)
