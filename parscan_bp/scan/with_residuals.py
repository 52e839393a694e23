"""The forward pass that keeps what derivatives read, and its own derivatives."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax

from parscan_bp.linearise.base import Steps
from parscan_bp.linearise.body import Active
from parscan_bp.linearise.linear_step import LinearStep
from parscan_bp.linearise.residuals import Residuals
from parscan_bp.primitives.pushforward import is_forward_only
from parscan_bp.primitives.with_rule import WithRule
from parscan_bp.primitives.zeros import filled, nonzero, zeros_of
from parscan_bp.scan.forward_mode import ForwardMode
from parscan_bp.scan.linear_scan import LinearScan
from parscan_bp.scan.systems import before
from parscan_bp.scan.tangents import solved_tangents
from parscan_bp.scan.values.base import Extra, ScanLoop
from parscan_bp.scan.values.trajectory import run_with_trajectory
from parscan_bp.trees import eval_shape, replace_at
from parscan_bp.types import Array


@dataclasses.dataclass(frozen=True, eq=False)
class WithResiduals:
    """``(args, extra) -> (outs, after, kept, answers)``, differentiable to any order.

    The outs are (carry, ys), after is the carry after every step, kept what else derivatives read
    of the steps, ``None`` if they are linearised again, and answers what `Answered` says. Functions
    are made once, so that JAX caches them.

    Attributes:
      loop: the forward pass.
      scan: the leaves that are differentiated.
      active: what is differentiated; ``None`` where nothing else is kept.
      steps: the scan of the step that makes the values, `scan` or what derivatives made of it.
      moving: the inputs of its step that are differentiated, see `LinearScan.differentiated`.
    """

    loop: ScanLoop
    scan: LinearScan
    active: Active | None
    steps: LinearScan
    moving: tuple[int, ...]

    def __call__(self, args, extra):
        return self._values(args, extra)

    @functools.cached_property
    def _values(self) -> WithRule:
        def jvp(primals, tangents):
            moves = self.scan.of_moving(tangents[0]) is not None
            later = self._after_derivative(tangents[0])
            through = self.scan.through and self.loop.values.in_steps and later._slopes is self.scan
            if moves and through and is_forward_only(primals[0], tangents[0]):
                return self._in_one_loop(list(primals[0]), list(tangents[0]))
            made = later(*primals)
            return made, self._tangents(self._slopes, primals, tangents, made)

        return WithRule(lambda args, extra: self._run(args, extra.states), jvp)

    @functools.cached_property
    def _slopes(self) -> LinearScan:
        """That of the step whose derivative the carries have, as one derivative was made."""
        return self.steps.after_derivative(self.moving)

    def _after_derivative(self, tangents) -> WithResiduals:
        """The same with these tangents of the args."""
        slopes, moving = self._slopes, self._slopes.differentiated(tangents)
        if slopes is self.steps and set(moving) <= set(self.moving):
            return self
        if moving not in self._later:
            self._later[moving] = dataclasses.replace(self, steps=slopes, moving=moving)
        return self._later[moving]

    @functools.cached_property
    def _later(self) -> dict[tuple[int, ...], WithResiduals]:
        return {}

    @functools.cached_property
    def _run(self) -> Callable:
        @jax.jit
        def run(args, states=()):
            if self.active is None:
                made = self.loop.run(args, states)
                return made.outs, made.after, None, made.answers
            asked, (consts, init, xs) = self.loop.asked, self.scan.body.split(args)
            extra = self.scan.linearisation.invariants(consts, [])
            first = [x[0] for x in xs]
            answers = eval_shape(lambda: self.loop.apart(asked(consts, init, first)[1], [])[2])
            one = Steps(consts, init, [*first, *answers], init, extra).shared_and_own
            linear: Any = self.scan.linearisation
            step = linear.beside_forward.linear_step(*one, self.active, cotangent=True)
            keep = _keep(step, consts, extra)

            def kept(carry, x, new, y):
                return keep(carry, [*x, *self.loop.apart(y, [])[2]], new)

            how = {**self.loop.how, "scan": self.loop.values.scan}
            carry, ys, after, values = run_with_trajectory(
                asked, consts, init, xs, **how, keep=kept
            )
            ys, after, answers = self.loop.apart(ys, after)
            return [*carry, *ys], after, Residuals(values, step, self.active), answers

        return run

    @functools.cached_property
    def _in_one_loop(self) -> ForwardMode:
        """The results and their tangents."""
        return self._one_loop(self._run, lambda made: made)

    @functools.cached_property
    def outputs_in_one_loop(self) -> ForwardMode:
        """(carry, ys) alone and their tangents, for which nothing is kept."""
        return self._one_loop(self.loop.plain, lambda made: made[0])

    def _one_loop(self, results: Callable, wanted: Callable) -> ForwardMode:
        def apart(args):
            made = self(args, Extra())
            return wanted(made), made

        def tangents(args, ts, made):
            return wanted(self.tangents((args, Extra()), (ts, Extra()), made))

        return ForwardMode(self.scan, self.loop.avals, results, apart, tangents)

    def tangents(self, primals, tangents, made):
        """Tangents of the results by the solver."""
        return self._tangents(self.scan, primals, tangents, made)

    def _tangents(self, by: LinearScan, primals, tangents, made):
        """The same, those of the carries by this scan: what is kept is a function of the rest."""
        outs, after, kept, answers = made
        args, ts = [*primals[0], *answers], [*tangents[0], *zeros_of(answers)]
        # More may move than what was differentiated first.
        scan = by.of_moving(ts)
        out_ts, after_ts = zeros_of(outs), zeros_of(after)
        if scan is not None:
            read = (outs, after, kept if scan is self.scan else None)
            out_ts, after_ts = solved_tangents(scan, (args, primals[1].jacobian), ts, read)
        if kept is None:
            return out_ts, after_ts, None, zeros_of(answers)
        moving, floats = nonzero(ts), nonzero(after_ts)

        def values(moved, carries):
            consts, init, xs = self.scan.body.split(replace_at(args, moving, moved))
            now = replace_at(after, floats, carries)
            entering = before(init, now, 0, self.scan.length, reverse=self.scan.reverse)
            extra = self.scan.linearisation.invariants(consts, [])
            keep = _keep(kept.step, consts, extra)
            return kept.step.known.mapped(keep)(entering, xs, now)

        at = [args[k] for k in moving], [after[k] for k in floats]
        _, pushed = jax.jvp(values, at, ([ts[k] for k in moving], [after_ts[k] for k in floats]))
        pushed = [None if t.dtype == jax.dtypes.float0 else t for t in pushed]
        kept_ts = dataclasses.replace(kept, values=filled(kept.values, pushed))
        return out_ts, after_ts, kept_ts, zeros_of(answers)


def _keep(step: LinearStep, consts, extra) -> Callable[..., list[Array]]:
    """``(carry, x, new_carry) -> what is kept`` of a step."""

    def keep(carry, x, new):
        return step.cut.make(jax.tree.leaves(Steps(consts, carry, x, new, extra).shared_and_own))

    return keep
