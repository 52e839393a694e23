"""The forward pass of a scan: where its values come from."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from parscan_bp.jaxprs.hoist import Hoist
from parscan_bp.jaxprs.read import split_operands
from parscan_bp.linearise.answered import Answered
from parscan_bp.linearise.body import Body
from parscan_bp.originals import lax_scan
from parscan_bp.scan.fused import FusedLoop
from parscan_bp.scan.parallel import ParallelLoop
from parscan_bp.scan.trajectory import before, run_with_trajectory
from parscan_bp.solvers.base import Solver
from parscan_bp.types import Array


class Extra(NamedTuple):
    """What a loop is given beside its arguments. None of it is differentiated.

    Attributes:
      jacobian: values that a given Jacobian closes over.
      states: of a forward pass by a method, arrays over all steps: the states that it begins with;
        or, where it is done, those that it made, and the outputs.
    """

    jacobian: Sequence[Array] = ()
    states: Sequence[Array] = ()


class Made(NamedTuple):
    """What a forward pass makes, as `run_with_trajectory`; and its answers, see `Answered`."""

    carry: list[Array]
    ys: list[Array]
    after: list[Array]
    answers: list[Array]

    @property
    def outs(self) -> list[Array]:
        """(carry, ys)."""
        return [*self.carry, *self.ys]


@dataclasses.dataclass(frozen=True, eq=False)
class Loop:
    """A traced `lax.scan` as a forward pass.

    Attributes:
      equation: the traced `lax.scan`, bound as it is for the values.
      body: its step, of the constants that `hoisted` makes.
      solver: has its say where the pass is run.
      hoist: what the step makes of its constants alone, if anything; the linearised body, and the
        loops of derivatives, get it as constants.
      other: what makes the values, if the caller asked for something: kernels, or a method.
      answered: the step with its answers, if it has any.
      scan: makes the steps one after the other, as `jax.lax.scan` does but for rounding.
    """

    equation: Any
    body: Body
    solver: Solver
    hoist: Hoist | None = None
    other: FusedLoop | ParallelLoop | None = None
    answered: Answered | None = None
    scan: Callable = lax_scan

    @property
    def asked(self) -> Body:
        """The step that gives its answers, too, as outputs after its own."""
        return self.body if self.answered is None else self.answered.asked

    @property
    def how(self) -> dict[str, Any]:
        return {name: self.equation.params[name] for name in ("length", "reverse", "unroll")}

    @functools.cached_property
    def _exact(self) -> Callable[..., tuple[list[Array], list[Array], list[Array]]]:
        def loop(consts, init, xs):
            how = {**self.how, "scan": self.scan}
            return run_with_trajectory(self.asked, consts, init, xs, **how)[:3]

        return loop

    @functools.cached_property
    def _placed(self) -> Callable[..., tuple[list[Array], list[Array], list[Array]]]:
        return self.solver.place.placed(self._exact, reverse=self.how["reverse"])

    def run(self, args: Sequence[Array], states: Sequence[Array] = ()) -> Made:
        """The forward pass, for the arguments of the body's loop.

        Args:
          args: consts, first carry and inputs.
          states: see `Extra`; of a method, what it made.
        """
        consts, init, xs = self.body.split(args)
        if self.other is not None:
            carry, ys, after = self.other.run(consts, init, xs, list(states))
            return Made(carry, ys, after, self._answers(consts, init, xs, after))
        carry, ys, after = self._placed(consts, init, xs)
        return Made(carry, *self.apart(ys, after))

    def apart(self, ys: list[Array], after: list[Array]) -> tuple[list[Array], ...]:
        """``(ys, after, answers)``, of the outputs of `asked`."""
        n = len(self.body.y_avals)
        return ys[:n], after, ys[n:]

    def _answers(self, consts, init, xs, after) -> list[Array]:
        """The answers at carries that something else made."""
        if self.answered is None:
            return []
        entering = before(init, after, 0, self.how["length"], reverse=self.how["reverse"])
        step = self.body.mapped(lambda carry, x: self.asked(consts, carry, x)[1])
        return self.apart(step(entering, list(xs)), after)[2]

    @property
    def is_lax(self) -> bool:
        """Whether the steps are made one after the other by `lax.scan`, wherever that is."""
        return self.other is None

    @functools.cached_property
    def by_lax(self) -> Loop:
        """The same by `lax.scan`, wherever that is."""
        return dataclasses.replace(self, other=None)

    @property
    def is_by_method(self) -> bool:
        """Whether a method makes the values, before anything else is done; see `evaluated`."""
        return self.other is not None and self.other.kernels is None

    @property
    def is_placed(self) -> bool:
        """Whether the solver has the steps run elsewhere than where the loop stands."""
        return self._placed is not self._exact

    @property
    def is_plain(self) -> bool:
        """Whether it is `lax.scan`'s own, run where it stands."""
        return self.is_lax and not self.is_placed and self.scan is lax_scan

    def of(self, solver: Solver, length: int) -> Loop:
        """The same step so many times."""
        params = {**self.equation.params, "length": length}
        return dataclasses.replace(
            self, solver=solver, equation=self.equation.replace(params=params)
        )

    def values(self, args: Sequence[Array], states: Sequence[Array]) -> list[Array]:
        """(carry, ys) for the arguments of the equation: exactly what it makes, if it is plain.

        Args:
          args: of the equation.
          states: see `run`.
        """
        if self.is_plain:
            return self.equation.primitive.bind(*args, **self.equation.params)
        return self.run(self.hoisted(args), states).outs

    def plain(self, args: Sequence[Array]) -> list[Array]:
        """(carry, ys) of `lax.scan` for the arguments of the body's loop."""
        if self.hoist is None:
            return self.equation.primitive.bind(*args, **self.equation.params)
        consts, init, xs = self.body.split(args)
        carry, ys = lax_scan(lambda c, x: self.body(consts, c, x), init, xs, **self.how)
        return [*carry, *ys]

    def hoisted(self, args: Sequence[Array]) -> list[Array]:
        """The arguments of the body's loop, from those of the equation."""
        return list(args) if self.hoist is None else self.hoist.args(args)

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
        consts, init, xs = split_operands(self.equation, [v.aval for v in self.equation.invars])
        length = self.how["length"]  # which may be that of a part
        xs = [a if a.shape[0] == length else a.update(shape=(length, *a.shape[1:])) for a in xs]
        avals = [*consts, *init, *xs]
        if self.hoist is not None:
            n = self.hoist.num_consts
            avals[n:n] = self.hoist.made.out_avals
        return avals
