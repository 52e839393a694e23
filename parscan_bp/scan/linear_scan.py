"""The linear side of a scan: how its step is linearised, and what solves for its tangents."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from parscan_bp.jaxprs.read import differentiable
from parscan_bp.linearise.base import Linearisation, Steps
from parscan_bp.linearise.body import Active, Body
from parscan_bp.linearise.linear_step import LinearStep
from parscan_bp.operators import Operator
from parscan_bp.primitives.linear_solve import LinearSolve
from parscan_bp.primitives.zeros import Zero, nonzero, zeros_of
from parscan_bp.scan.systems import Primal, before
from parscan_bp.solvers.base import Solver
from parscan_bp.trees import eval_shape, nbytes
from parscan_bp.types import Array, PyTree

AdjointKernel = Callable[
    [Primal, Active, Sequence[Array | Zero], Sequence[Array]],
    tuple[PyTree, list[Array], list[Array], list[Array]],
]
"""``(primal, active, gamma, last) -> (summed, first, xs, lambdas)``: solves `systems.Adjoint`.

Gamma are cotangents of the carry after every step, without the next step's, or that they are zero;
last those of the carry that leaves the scan. It returns the cotangents of what the cell's
parameters are in `Linearisation.pullback`, of the first carry, of the active inputs, and lambda."""


@dataclasses.dataclass(frozen=True, eq=False)
class LinearScan:
    """A scan as its derivatives see it; compared by identity.

    Attributes:
      linearisation: how the step's Jacobian is obtained.
      solver: what solves the bi-diagonal system.
      length, reverse: the loop.
      adjoint: a kernel that solves for the cotangents in place of the solver, if there is one.
      whole: the scan of which this one is `restricted`, if it is.
    """

    linearisation: Linearisation
    solver: Solver
    length: int
    reverse: bool
    adjoint: AdjointKernel | None = None
    whole: LinearScan | None = None

    @property
    def body(self) -> Body:
        return self.linearisation.body

    @property
    def through(self) -> bool:
        """Whether the solver's own program may be differentiated: it is made of the step's."""
        return (
            self.solver.differentiable and self.linearisation.is_products and self.adjoint is None
        )

    def primal(self, residuals, kept=None) -> Primal:
        """The scan that is differentiated, for the residuals of `augmented`."""
        consts, init, xs, after, extra = residuals
        linear, init = self.linearisation, self._entering(init, after)
        extra = linear.invariants(consts, extra)
        return Primal(linear, consts, init, xs, after, extra, kept, self.length, self.reverse)

    def before(self, init: list[Array], after: list[Array]) -> list[Array]:
        """The carry that enters each step, from those after every step; or their tangents."""
        init = self._entering(init, after)
        return before(init, after, 0, self.length, reverse=self.reverse)

    def _entering(self, init, after):
        return self.solver.place.entering(init, after, reverse=self.reverse)

    def moved(self, moving: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The carry leaves and outputs that have tangents if the args at these positions do."""
        return self.body.moved(moving)

    def effective(self, args: Sequence[Array], tangents: Sequence[Any]) -> list[Any]:
        """The tangents, zero where nothing has a derivative by the argument."""
        kept = np.asarray(self.body.reach.depends.any(0))
        zeros = zeros_of(args)
        return [t if k else zero for t, k, zero in zip(tangents, kept, zeros, strict=True)]

    def active(self, tangents: Sequence[Any]) -> Active:
        """What these tangents of the args make differentiated."""
        consts, _, xs = self.body.split(tangents)
        _, y = self.moved(nonzero(tangents))
        return Active(nonzero(consts), nonzero(xs), tuple(j for j in self.body.float_y if j in y))

    def of_moving(self, tangents: Sequence[Any]) -> LinearScan | None:
        """The scan of the carry leaves that these tangents move; ``None`` if nothing moves."""
        carry, y = self.moved(nonzero(tangents))
        return self.restricted(carry) if carry or y else None

    def restricted(self, carry: tuple[int, ...]) -> LinearScan:
        """The scan of these carry leaves alone; of all where their Jacobian is not to be had."""
        whole = self if self.whole is None else self.whole
        if carry == whole.body.float_carry or self.adjoint is not None:
            return whole
        if carry not in whole._restricted:
            linear, part = whole.linearisation.restricted(carry), whole
            if linear is not None:
                part = dataclasses.replace(whole, linearisation=linear, whole=whole)
            whole._restricted[carry] = part
        return whole._restricted[carry]

    @functools.cached_property
    def _restricted(self) -> dict[tuple[int, ...], LinearScan]:
        return {}

    def differentiated(self, tangents: Sequence[Any]) -> tuple[int, ...]:
        """The inputs of the step that these tangents of the args move, where that matters.

        Args:
          tangents: also those by which nothing has a derivative: rules are run of them.
        """
        if not self.body.has_rules:
            return ()
        moving, n = nonzero(tangents), self.body.num_consts
        return tuple(sorted({*moving, *(n + k for k in self.moved(moving)[0])}))

    def after_derivative(self, moving: tuple[int, ...]) -> LinearScan:
        """The scan whose derivative the next one is.

        Args:
          moving: see `differentiated`.
        """
        whole = self if self.whole is None else self.whole
        if not (moving and whole.body.has_rules) or self.adjoint is not None:
            return self
        if moving not in whole._after:
            linear = whole.linearisation.after_derivative(moving)
            changed = linear is not whole.linearisation
            later = dataclasses.replace(whole, linearisation=linear) if changed else None
            whole._after[moving] = later
        return whole._after[moving] or self

    @functools.cached_property
    def _after(self) -> dict[tuple[int, ...], LinearScan | None]:
        return {}

    def operator_type(self, extra: Sequence[Array]) -> Operator:
        """The stack of its transposed Jacobians, in shapes and dtypes.

        Args:
          extra: values that a given Jacobian closes over.
        """

        def made(consts, carry, xs, extra):
            extra = self.linearisation.invariants(consts, extra)
            return self.linearisation.adjoint_operator(Steps(consts, carry, xs, carry, extra))

        stacked = self.body.stacked_avals(self.length)
        return eval_shape(made, list(self.body.const_avals), *stacked, list(extra))

    @property
    def linear_step(self) -> LinearStep | None:
        """The transposed map of a step for all that may be differentiated.

        ``None`` where Jacobians are formed.
        """
        avals = (list(a) for a in (self.body.const_avals, self.body.carry_avals, self.body.x_avals))
        consts, carry, x = avals
        active = Active(differentiable(consts), differentiable(x), ())
        return self._linear_step(consts, carry, x, active)

    def plan_pullback(self, residuals: PyTree, active: Active) -> None:
        """Makes the linear step of a pullback, with the settings and the named axes of now.

        Args:
          residuals: see `augmented`.
          active: what is differentiated.
        """
        if self.adjoint is None:
            consts, _, xs, after, _ = residuals
            carry, x = eval_shape(lambda: [[a[0] for a in values] for values in (after, xs)])
            self._linear_step(consts, carry, x, active)

    def _linear_step(self, consts, carry, x, active: Active) -> LinearStep | None:
        """That of a step of these values, or types."""
        if not self.linearisation.is_products:
            return None

        def one(consts, carry, x):
            extra = self.linearisation.invariants(consts, [])
            return Steps(consts, carry, x, carry, extra).shared_and_own

        shared, own = eval_shape(one, consts, carry, x)
        return self.linearisation.linear_step(shared, own, active, cotangent=True)

    @property
    def kept_bytes(self) -> int:
        """Bytes that a forward pass keeps of a linearised step, where it does."""
        step = self.linear_step if self.solver.keeps else None
        return 0 if step is None else nbytes([v.aval for v in step.cut.kept])

    def bytes_of_a_step(self, extra: Sequence[Array]) -> tuple[int, int]:
        """Bytes of a linearised step, and of its vector with what a pullback is made from.

        Args:
          extra: values that a given Jacobian closes over.
        """
        vector = nbytes([self.body.carry_avals[k] for k in self.body.float_carry])
        step = self.linear_step
        if step is not None:
            return step.known.nbytes, vector + nbytes(list(step.aux_types))
        operator = self.operator_type(extra)
        leaves = [a for a, ndim in operator.leaves() if len(a.shape) > ndim]
        return nbytes(leaves) // self.length, vector + self.body.nbytes

    @functools.cached_property
    def groups(self) -> Sequence[tuple[int, ...]]:
        """The carry leaves in systems of their own, see `components`."""
        floats = self.body.float_carry
        apart = self.solver.needs == "operators" and not self.linearisation.diagonal
        groups = self.body.reach.components(floats) if apart else [floats]
        together = any(self.restricted(group) is self for group in groups)
        return [floats] if together else groups

    @functools.cached_property
    def solves(self) -> dict[Active, LinearSolve]:
        """The augmented solves that were made: JAX keeps a program for each."""
        return {}
