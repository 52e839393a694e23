"""The differentiation rule of the scan: one linear solve, for every order and mode.

The rule is a `WithRule`. Its tangent is one linear solve on the *augmented* system (`augmented`),
whose unknowns are the input tangents together with what they cause. Where nothing is transposed any
more there are shorter ways: tangents alone are one loop (`forward_mode`), where the solver is
left to us, and those of a gradient come from the sweep's own program (`linear_solve`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from parscan_bp.linearise.body import Body
from parscan_bp.primitives.pushforward import is_forward_only
from parscan_bp.primitives.with_rule import WithRule
from parscan_bp.primitives.zeros import filled, nonzero, zeros_of
from parscan_bp.report import Report, worst_of
from parscan_bp.scan.in_stretches import by_stretches
from parscan_bp.scan.linear_scan import LinearScan
from parscan_bp.scan.report import report_on_scan, with_forward
from parscan_bp.scan.storage import Storage
from parscan_bp.scan.values.base import Extra, Prepared, RunScan, ScanLoop
from parscan_bp.scan.values.exact import LAX
from parscan_bp.scan.with_residuals import WithResiduals
from parscan_bp.solvers.base import Solver, check_nothing_in_the_way
from parscan_bp.trees import replace_at
from parscan_bp.types import Array


@dataclasses.dataclass(frozen=True, eq=False)
class ScanRule:
    """A traced scan with its derivatives. Functions are made once, so that JAX caches them.

    Attributes:
      loop: the forward pass.
      scan: how derivatives are solved for.
      one_loop: whether forward-mode is `lax.scan`'s own loop, not a solve.
      obstacle: what keeps a solver from derivatives, if anything does.
      storage: what is stored of so many steps under a limit; ``None`` without one.
    """

    loop: ScanLoop
    scan: LinearScan
    one_loop: bool = False
    obstacle: str | None = None
    storage: Callable[[int], Storage] | None = None

    @property
    def keeps(self) -> bool:
        """Whether the forward pass keeps the linearised steps for the backward pass."""
        return self.scan.solver.keeps and self.loop.values.in_steps and not self.loop.is_placed

    def __call__(self, args: Sequence[Array], extra: Extra) -> list[Array]:
        """The outputs of the scan for ``args = [*consts, *init, *xs]``."""
        return self._outputs(args, self._prepared(args, extra)[0])

    def reported(self, args: Sequence[Array], extra: Extra) -> tuple[list[Array], Report]:
        """The outputs, and the report on them and on what derivatives are made of."""
        check_nothing_in_the_way(self.obstacle, self.scan.solver)
        extra, told = self._prepared(args, extra)
        outs = self._outputs(args, extra)
        report = self._report(*jax.lax.stop_gradient((list(args), extra)))
        return outs, with_forward(report, told)

    @functools.cached_property
    def _prepared(self) -> Prepared:
        return self.loop.values.prepared(self.loop)

    def _outputs(self, args: Sequence[Array], extra: Extra) -> list[Array]:
        carry, ys = self._everywhere(args, extra)
        return [*carry, *ys]

    @functools.cached_property
    def _everywhere(self) -> RunScan:
        count = self.scan.body.num_carry

        def of(rule):
            def call(args, extra):
                outs = rule._values(list(args), extra)
                return outs[:count], outs[count:]

            return call

        in_parts = self._in_one_place(of)

        def run(solver, length):
            rule, call = self.of(solver, length), in_parts(solver, length)
            parted = rule.stored is not None and rule.stored.sizes
            return rule._whole_until_differentiated(call) if parted else call

        return self.loop.everywhere(run)

    @property
    def stored(self) -> Storage | None:
        """What is stored of it under a limit."""
        return None if self.storage is None else self.storage(self.scan.length)

    def _whole_until_differentiated(self, parts: RunScan) -> RunScan:
        """A scan in stretches where it is differentiated, and whose values are the loop's."""
        count, traced = self.scan.body.num_carry, Body.of_scan(self.loop.equation)

        def jvp(primals, tangents):
            (args, extra), moving = primals, nonzero(tangents[0])
            if not moving:
                made = values(*primals)
                return made, zeros_of(made)

            def run(*moved):
                carry, ys = parts(replace_at(args, moving, moved), extra)
                return [*carry, *ys]

            at, ts = ([v[k] for k in moving] for v in (args, tangents[0]))
            made, out_ts = jax.jvp(run, at, ts)
            carry, y = traced.moved(moving)
            reached = {*carry, *(count + j for j in y)}
            kept = [t if k in reached else None for k, t in enumerate(out_ts)]
            return made, filled(made, kept)

        values = WithRule(lambda args, extra: self.loop.outs(args, extra.states), jvp)

        def call(args, extra):
            outs = values(list(args), extra)
            return outs[:count], outs[count:]

        return call

    def _in_one_place(
        self, make: Callable[[ScanRule], RunScan]
    ) -> Callable[[Solver, int], RunScan]:
        """``(solver, n)`` -> the scan of n steps in one place, of which ``make`` makes a part."""

        def run(solver, length):
            rule = self.of(solver, length)
            stored = rule.stored
            if stored is None or not stored.sizes:
                return make(rule)
            part = functools.cache(lambda n: make(self.of(solver, n)))

            def call(args, extra):
                of_steps = lambda n: lambda values: part(n)(values, extra)  # noqa: E731
                return by_stretches(self.loop.equation, of_steps, stored)(args)

            return call

        return run

    def of(self, solver: Solver, length: int) -> ScanRule:
        """The rule of so many steps by a solver."""
        if (solver, length) == (self.scan.solver, self.scan.length):
            return self
        scan = dataclasses.replace(self.scan, solver=solver, length=length)
        return dataclasses.replace(self, loop=self.loop.of(solver, length), scan=scan)

    @functools.cached_property
    def _values(self) -> WithRule:
        """The outputs in one place."""

        def values(args, extra):
            return self.loop.outs(args, extra.states)

        def jvp(primals, tangents):
            check_nothing_in_the_way(self.obstacle, self.scan.solver)
            args, pushed = self.loop.push_hoisted(primals[0], tangents[0])
            moving = self.scan.differentiated(pushed)
            ts = self.scan.effective(args, pushed)
            scan = self.scan.of_moving(ts)
            if scan is None:
                if self.scan.after_derivative(moving) is self.scan:
                    outs = self._values(*primals)
                else:
                    outs = self._with_residuals(self.scan, None, self.scan, moving)(
                        args, primals[1]
                    )[0]
                return outs, zeros_of(outs)
            active = scan.active(ts) if self.keeps else None
            keeping = self._with_residuals(scan, active, scan, moving)
            if self.one_loop and is_forward_only(args, ts):
                return keeping.outputs_in_one_loop(args, ts)
            made = keeping(args, primals[1])
            return made[0], keeping.tangents((args, primals[1]), (ts, tangents[1]), made)[0]

        def linear(args, extra):
            return self.loop.by(LAX).outs(args, ())

        return WithRule(values, jvp, None if self.loop.values.exact else linear)

    @functools.cached_property
    def _report(self) -> Callable[..., Report]:
        """The report on a scan wherever its steps are; exact ones are run once more for it."""
        structure: list[Any] = []

        def of(rule):
            def call(args, extra):
                args = rule.loop.hoisted(args)
                made = rule.loop.run(args, extra.states)
                split = rule.scan.body.split([*args, *made.answers])
                residuals = (*split, made.after, extra.jacobian)
                told = report_on_scan(rule.scan, residuals, made.outs)
                structure.append(jax.tree.structure(told))
                return made.carry, [field[None] for field in jax.tree.leaves(told)]

            return call

        everywhere = self.loop.everywhere(self._in_one_place(of))

        @jax.jit
        def report(args, extra):
            _, told = everywhere(args, extra)
            return worst_of(
                [jax.tree.unflatten(structure[-1], place) for place in zip(*told, strict=True)]
            )

        return report

    @functools.cached_property
    def _with_residuals(self) -> Callable[..., WithResiduals]:
        """The forward pass of a derivative."""
        return functools.cache(functools.partial(WithResiduals, self.loop))
