"""The differentiation rule of the scan: one linear solve, for every order and mode.

The rule is a `WithRule`. Its tangent is one linear solve on the *augmented* system (`augmented`),
whose unknowns are the input tangents together with what they cause. Where nothing is transposed any
more there are shorter ways: tangents alone are one loop (`one_loop`), where the solver is
left to us, and those of a gradient come from the sweep's own program (`linear_solve`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax

from parscan_bp.jaxprs.obstacles import check_no_obstacle
from parscan_bp.linearise.active import Active
from parscan_bp.primitives.pushforward import is_forward_only
from parscan_bp.primitives.with_rule import WithRule
from parscan_bp.primitives.zeros import zeros_of
from parscan_bp.report import Report
from parscan_bp.scan.linear_scan import LinearScan
from parscan_bp.scan.loop import Extra, Loop
from parscan_bp.scan.recorded import Recorded
from parscan_bp.scan.reported import report_on_scan, with_forward
from parscan_bp.types import Array


@dataclasses.dataclass(frozen=True, eq=False)
class ScanRule:
    """A traced scan with its derivatives. Functions are made once, so that JAX caches them.

    Attributes:
      loop: the forward pass.
      scan: how derivatives are solved for.
      one_loop: whether forward-mode is `lax.scan`'s own loop, not a solve.
      obstacle: what keeps a solver from derivatives, if anything does.
    """

    loop: Loop
    scan: LinearScan
    one_loop: bool = False
    obstacle: str | None = None

    @property
    def keeps(self) -> bool:
        """Whether the forward pass keeps the linearised steps for the backward pass."""
        return self.scan.solver.keeps and self.loop.is_plain

    def __call__(self, args: Sequence[Array], extra: Extra) -> list[Array]:
        """The outputs of the scan for ``args = [*consts, *init, *xs]``."""
        return self._values(False)(list(args), extra)

    def reported(self, args: Sequence[Array], extra: Extra) -> tuple[list[Array], Report]:
        """The outputs, and the report on them and what derivatives are made of; see `reported`."""
        check_no_obstacle(self.obstacle, self.scan.solver)
        by_method, body = self.loop.is_by_method, self.scan.body
        made = self._values(by_method)(list(args), extra)
        n = body.num_carry + len(body.y_avals)
        outs, told = made[:n], self.loop.told(made[n:]) if by_method else None
        after = None if told is None else told.states
        values = jax.lax.stop_gradient((list(args), extra, outs, after))
        return outs, with_forward(self._report(*values), told)

    @functools.cached_property
    def _values(self) -> Callable[[bool], WithRule]:
        """The outputs, and what a method tells if it is asked to."""
        return functools.cache(self._make_values)

    def _make_values(self, tells: bool) -> WithRule:
        def values(args, extra):
            return self.loop.values(args, extra.guess, tells=tells)

        def jvp(primals, tangents):
            check_no_obstacle(self.obstacle, self.scan.solver)
            args, ts = self.loop.push_hoisted(primals[0], tangents[0])
            ts = self.scan.effective(args, ts)
            scan = self.scan.of_moving(ts)
            if scan is None:
                outs = self._values(tells)(*primals)
                return outs, zeros_of(outs)
            recorded = self._recorded(scan, scan.active(ts) if self.keeps else None, tells)
            if self.one_loop and is_forward_only(args, ts):
                return recorded.outputs_in_one_loop(args, ts)
            made = recorded(args, primals[1])
            return made[0], recorded.tangents((args, primals[1]), (ts, tangents[1]), made)[0]

        return WithRule(values, jvp)

    @functools.cached_property
    def _report(self) -> Callable[..., Report]:
        @jax.jit
        def report(args, extra, outs, after):
            args = self.loop.hoisted(args)
            after = self.loop.run(args).after if after is None else after
            residuals = (*self.scan.body.split(args), after, extra.jacobian)
            return report_on_scan(self.scan, residuals, outs)

        return report

    @functools.cached_property
    def _recorded(self) -> Callable[[LinearScan, Active | None, bool], Recorded]:
        """The forward pass of a derivative."""
        return functools.cache(functools.partial(Recorded, self.loop))
