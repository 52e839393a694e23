"""The body of a scan as a flat function, and which parts of it take part in differentiation."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, JaxprEqn

from parscan_bp.jaxprs.batching import mapped, unbatchable
from parscan_bp.jaxprs.dependence import dependencies, forwarded
from parscan_bp.jaxprs.differentiated import has_rules, pushed, values_after_derivative
from parscan_bp.jaxprs.precision import shortest_dtype
from parscan_bp.jaxprs.read import differentiable, is_differentiable, scan_counts
from parscan_bp.jaxprs.replay import evaluate
from parscan_bp.linearise.layout import CarryLayout
from parscan_bp.structure.reach import Reach
from parscan_bp.trees import nbytes, replace_at
from parscan_bp.types import Array


@dataclasses.dataclass(frozen=True)
class Active:
    """Which consts, inputs and outputs take part in differentiation, by position."""

    consts: tuple[int, ...]
    x: tuple[int, ...]
    y: tuple[int, ...]

    def of_consts(self, values: Sequence[Any]) -> list[Any]:
        return [values[k] for k in self.consts]

    def of_x(self, values: Sequence[Any]) -> list[Any]:
        return [values[k] for k in self.x]

    def insert_consts(self, values: Sequence[Any], active: Sequence[Any]) -> list[Any]:
        return replace_at(values, self.consts, active)

    def insert_x(self, values: Sequence[Any], active: Sequence[Any]) -> list[Any]:
        return replace_at(values, self.x, active)


NOTHING = Active((), (), ())
"""Of consts, inputs and outputs: the carry alone is differentiated."""


@dataclasses.dataclass(frozen=True)
class Body:
    """A traced scan body ``(consts, carry, x) -> (carry, y)``, all flat.

    Attributes:
      jaxpr: inputs ``[*consts, *carry, *x]``, outputs ``[*carry, *y]``.
      num_consts: number of loop-invariant inputs.
      num_carry: number of carry leaves.
      only: the carry leaves that take part in differentiation; ``None`` for all that can.
    """

    jaxpr: ClosedJaxpr
    num_consts: int
    num_carry: int
    only: tuple[int, ...] | None = None

    @classmethod
    def of_scan(cls, equation: JaxprEqn) -> Body:
        """That of a traced scan."""
        return cls(equation.params["jaxpr"], *scan_counts(equation))

    def moved(self, moving: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The carry leaves and outputs that have tangents if the args at these positions do."""
        a, b = self.num_consts, self.num_consts + self.num_carry
        consts = [k for k in moving if k < a]
        carry = [k - a for k in moving if a <= k < b]
        return self.reach.forward(consts, carry, [k - b for k in moving if k >= b])

    def __hash__(self):
        return id(self.jaxpr)

    def __call__(self, consts, carry, x) -> tuple[list[Array], list[Array]]:
        out = evaluate(self.jaxpr, [*consts, *carry, *x])
        return list(out[: self.num_carry]), list(out[self.num_carry :])

    def split(self, args: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """Consts, first carry and inputs of a scan, of all its arguments."""
        a, b = self.num_consts, self.num_consts + self.num_carry
        return list(args[:a]), list(args[a:b]), list(args[b:])

    @property
    def const_avals(self):
        return self.jaxpr.in_avals[: self.num_consts]

    @property
    def carry_avals(self):
        return self.jaxpr.in_avals[self.num_consts : self.num_consts + self.num_carry]

    @property
    def x_avals(self):
        return self.jaxpr.in_avals[self.num_consts + self.num_carry :]

    @property
    def y_avals(self):
        return self.jaxpr.out_avals[self.num_carry :]

    @functools.cached_property
    def float_carry(self) -> tuple[int, ...]:
        """Carry leaves that have tangents."""
        floats = differentiable(self.carry_avals)
        return tuple(k for k in floats if self.only is None or k in self.only)

    def stacked_avals(self, length: int) -> tuple[list[Any], list[Any]]:
        """The types of so many carries and inputs."""
        carry, x = (
            [jax.ShapeDtypeStruct((length, *a.shape), a.dtype) for a in avals]
            for avals in (self.carry_avals, self.x_avals)
        )
        return carry, x

    def layout(
        self, batch_axes: Sequence[tuple[int, ...]], *, keep_complex: bool = False
    ) -> CarryLayout:
        """The join of the leaves that have tangents, of these batch axes; see `CarryLayout`."""
        avals = [self.carry_avals[k] for k in self.float_carry]
        shapes, dtypes = tuple(a.shape for a in avals), tuple(a.dtype for a in avals)
        return CarryLayout(shapes, dtypes, tuple(batch_axes), keep_complex)

    @functools.cached_property
    def rounded_in(self) -> np.dtype | None:
        """The shortest dtype on the way of a derivative from carry to carry."""
        carry = [self.num_consts + k for k in self.float_carry]
        return shortest_dtype(self.jaxpr, carry, self.float_carry)

    @functools.cached_property
    def unbatchable(self) -> str | None:
        """What in it keeps many steps from being evaluated as one batch, see there."""
        return unbatchable(self.jaxpr)

    def mapped(self, f: Callable) -> Callable:
        """A function that evaluates it, of many steps, or directions: as a batch if it may be."""
        return mapped(f, in_turn=self.unbatchable is not None)

    @functools.cached_property
    def reach(self) -> Reach:
        """Which derivatives there are."""
        return Reach.of(self.jaxpr, self.num_consts, self.num_carry)

    def restricted(self, carry: tuple[int, ...]) -> Body:
        """The same step, of which only these carry leaves have tangents."""
        body = dataclasses.replace(self, only=carry)
        body.__dict__.update(reach=self.reach, unbatchable=self.unbatchable)
        return body

    @functools.cached_property
    def has_rules(self) -> bool:
        """Whether it holds a derivative of the user's, see there."""
        return has_rules(self.jaxpr.jaxpr)

    def after_derivative(self, moving: tuple[int, ...]) -> Body:
        """The step whose derivative the next one is, see `values_after_derivative`.

        Args:
          moving: the inputs by which it was differentiated.
        """
        jaxpr = values_after_derivative(self.jaxpr, moving)
        return self if jaxpr is self.jaxpr else dataclasses.replace(self, jaxpr=jaxpr)

    @functools.cached_property
    def forwarded(self) -> dict[int, int]:
        """y leaves that are the new carry itself: index of y -> index of the carry."""
        found = enumerate(forwarded(self.jaxpr, self.num_carry))
        return {j: k for j, k in found if k is not None}

    @functools.cached_property
    def nbytes(self) -> int:
        """Bytes of all values that one step computes."""
        return nbytes([v.aval for eqn in self.jaxpr.jaxpr.eqns for v in eqn.outvars])

    @functools.cached_property
    def slopes_read(self) -> tuple[bool, ...]:
        """For each carry leaf, whether derivatives by anything read it: of others nothing is kept.

        All where no tangents can be pushed through the step: an axis of an outer `jax.vmap` is not
        bound here, a primitive has no derivative, a function has a VJP of its own.
        """
        moving = differentiable(self.jaxpr.in_avals)
        floats = differentiable(self.jaxpr.out_avals)
        try:
            depends = dependencies(pushed(self.jaxpr, moving))
        except (NameError, NotImplementedError, TypeError):
            return (True,) * self.num_carry
        count = len(self.jaxpr.out_avals)
        tangents = np.asarray(depends[[count + k for k in floats]].any(0))
        return tuple(map(bool, tangents[self.num_consts : self.num_consts + self.num_carry]))

    @property
    def x_bytes(self) -> int:
        """Bytes of the inputs of one step, and of their cotangents."""
        return nbytes(list(self.x_avals)) + _float_bytes(self.x_avals)

    @property
    def const_bytes(self) -> int:
        """Bytes of the cotangents of what all steps share."""
        return _float_bytes(self.const_avals)

    @functools.cached_property
    def float_y(self) -> tuple[int, ...]:
        """y leaves that have tangents of their own: not merely the new carry."""
        return tuple(
            j
            for j, a in enumerate(self.y_avals)
            if is_differentiable(a) and j not in self.forwarded
        )


def _float_bytes(avals: Sequence[Any]) -> int:
    return nbytes(list(filter(is_differentiable, avals)))
