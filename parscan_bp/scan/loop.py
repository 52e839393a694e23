"""The forward pass of a scan: where its values come from."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from parscan_bp.jaxprs.hoist import Hoist
from parscan_bp.linearise.body import Body
from parscan_bp.originals import lax_scan
from parscan_bp.scan.fused import FusedLoop
from parscan_bp.scan.trajectory import run_with_trajectory
from parscan_bp.solvers.base import Solver
from parscan_bp.types import Array


@dataclasses.dataclass(frozen=True, eq=False)
class Loop:
    """A traced `lax.scan` as a forward pass.

    Attributes:
      equation: the traced `lax.scan`, bound as it is for the values.
      body: its step, of the constants that `hoisted` makes.
      solver: has its say where the pass is run.
      hoist: what the step makes of its constants alone, if anything; the linearised body, and the
        loops of derivatives, get it as constants.
      fused: the kernels that make the values, if the caller asked for them.
    """

    equation: Any
    body: Body
    solver: Solver
    hoist: Hoist | None = None
    fused: FusedLoop | None = None

    @property
    def how(self) -> dict[str, Any]:
        return {name: self.equation.params[name] for name in ("length", "reverse", "unroll")}

    @functools.cached_property
    def _exact(self) -> Callable[..., tuple[list[Array], list[Array], list[Array]]]:
        def loop(consts, init, xs):
            return run_with_trajectory(self.body, consts, init, xs, **self.how)[:3]

        return loop

    @functools.cached_property
    def run(self) -> Callable[..., tuple[list[Array], list[Array], list[Array]]]:
        """``(consts, init, xs) -> (carry, ys, after)``, as `run_with_trajectory`."""
        loop = self._exact if self.fused is None else self.fused.run
        return self.solver.placed(loop, reverse=self.how["reverse"])

    @property
    def is_plain(self) -> bool:
        """Whether it is `lax.scan`'s own, run where it stands."""
        return self.run is self._exact

    def of(self, solver: Solver, length: int) -> Loop:
        """The same step so many times."""
        params = {**self.equation.params, "length": length}
        return dataclasses.replace(
            self, solver=solver, equation=self.equation.replace(params=params)
        )

    def values(self, args: Sequence[Array]) -> list[Array]:
        """(carry, ys) for the arguments of the equation: exactly what it makes, if it is plain."""
        if self.is_plain:
            return self.equation.primitive.bind(*args, **self.equation.params)
        carry, ys, _ = self.run(*self.body.split(self.hoisted(args)))
        return [*carry, *ys]

    def plain(self, args: Sequence[Array]) -> list[Array]:
        """(carry, ys) of `lax.scan` for the arguments of the body's loop."""
        if self.hoist is None:
            return self.equation.primitive.bind(*args, **self.equation.params)
        consts, init, xs = self.body.split(args)
        carry, ys = lax_scan(lambda c, x: self.body(consts, c, x), init, xs, **self.how)
        return [*carry, *ys]

    def hoisted(self, args: Sequence[Array]) -> list[Array]:
        """The arguments of the body's loop, from those of the equation."""
        if self.hoist is None:
            return list(args)
        n = self.hoist.num_consts
        return [*self.hoist.consts(args[:n]), *args[n:]]

    def push_hoisted(
        self, args: Sequence[Array], tangents: Sequence[Any]
    ) -> tuple[list[Array], list[Any]]:
        """`hoisted`, and the tangents."""
        if self.hoist is None:
            return list(args), list(tangents)
        n = self.hoist.num_consts
        consts, ts = self.hoist.push(args[:n], tangents[:n])
        return [*consts, *args[n:]], [*ts, *tangents[n:]]

    @property
    def avals(self) -> list[Any]:
        """The types of the arguments of the body's loop."""
        avals = [v.aval for v in self.equation.invars]
        if self.hoist is not None:
            n = self.hoist.num_consts
            avals[n:n] = self.hoist.made.out_avals
        return avals
