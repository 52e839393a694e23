"""A decided scan: its step, its solver, its rule."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax

from parscan_bp.choice.facts import Choice, Facts
from parscan_bp.jaxprs.read import scan_counts
from parscan_bp.jaxprs.replay import bind
from parscan_bp.jaxprs.stage import Staged
from parscan_bp.report import report_on_values
from parscan_bp.scan.in_stretches import by_stretches
from parscan_bp.scan.rule import ScanRule
from parscan_bp.scan.step import Step, forms
from parscan_bp.scan.storage import Storage
from parscan_bp.scan.values import forward_wisdom
from parscan_bp.scan.values.base import Extra
from parscan_bp.scan.values.forward_wisdom import RememberedForward
from parscan_bp.scan.values.method import checked_guess
from parscan_bp.types import PyTree


@dataclasses.dataclass(frozen=True, eq=False)
class ScanPlan:
    """A decided scan.

    Attributes:
      staged: the traced call.
      choice: the solver, or ``None`` for `lax.scan` itself, and why.
      step: what is known of its step; ``None`` where it was left before that was asked.
      facts: what the choice was made from; ``None`` where there was none.
      rule: the differentiation rule, ``None`` for `lax.scan` itself.
      extra: values that a given Jacobian closes over.
      fell_back: whether a named solver leaves the call to `lax.scan`.
      stored: of a call that is left to `lax.scan`, what it stores under a limit.
    """

    staged: Staged
    choice: Choice
    step: Step | None = None
    facts: Facts | None = None
    rule: ScanRule | None = None
    extra: Sequence[Any] = ()
    fell_back: bool = False
    stored: Storage | None = None

    @functools.cached_property
    def measured(self) -> RememberedForward | None:
        """What was measured of its forward pass by methods. A later plan looks again."""
        return None if self.key is None else forward_wisdom.recall(self.key)

    @property
    def key(self) -> str | None:
        """By which a measurement is remembered, where there is a choice."""
        return None if self.step is None else self.step.key

    def __call__(
        self, args: Sequence[Any], *, guess: PyTree = None, report: bool = False
    ) -> tuple[PyTree, Any]:
        """Runs the call, without a rule as it was traced; its result, and the report on it.

        Args:
          args: of the call, flat.
          guess: what a method of the forward pass begins with; ``None`` where there is nothing.
          report: whether there is one.
        """
        rule, told = self.rule, None
        leaves = []
        if guess is not None and self.step is not None:
            leaves = checked_guess(guess, self.step.body, self.step.length)
        extra = Extra(*jax.lax.stop_gradient((list(self.extra), leaves)))

        def run(values):
            nonlocal told
            if rule is None:
                outs = self._by_lax(values)
                told = report_on_values(outs, fell_back=self.fell_back) if report else None
            elif report:
                outs, told = rule.reported(values, extra)
            else:
                outs = rule(values, extra)
            return outs

        return self.staged.run(args, run), told

    def _by_lax(self, values: Sequence[Any]) -> list[Any]:
        equation = self.staged.equation
        if self.stored is None:
            return bind(equation, values)
        count, params = scan_counts(equation)[1], equation.params

        def part(n):
            def call(args):
                outs = bind(equation.replace(params={**params, "length": n}), args)
                return outs[:count], outs[count:]

            return call

        carry, ys = by_stretches(equation, part, self.stored)(values)
        return [*carry, *ys]

    def check_jacobian(self, args: Sequence[Any]) -> None:
        """The check of its step, where the linear model holds that.

        Raises:
          ValueError: naming what contradicts the step's derivative; or if the values are traced.
        """
        step = self.step
        if step is None:
            return
        if any(isinstance(v, jax.core.Tracer) for v in (*args, *self.staged.consts)):
            raise ValueError(
                "check_jacobian: needs concrete values; call scan outside jit and grad"
            )

        def run(values):
            step.check(values, step.linearise(formed=forms(self.choice.solver)))
            return self.staged.equation.primitive.bind(*values, **self.staged.equation.params)

        self.staged.run(args, run)


@dataclasses.dataclass(frozen=True)
class Left:
    """A call that is left to `lax.scan` with nothing planned.

    Attributes:
      reason: why.
      fell_back: see `ScanPlan`.
    """

    reason: str
    fell_back: bool = False
    rule: None = None
    extra: tuple[()] = ()
    stored: None = None

    def check_jacobian(self, args: Sequence[Any]) -> None:
        """Nothing is assumed."""


PlanOrLeft = ScanPlan | Left
