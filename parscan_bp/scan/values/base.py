"""Whence the values of a scan come: what ``forward=`` means, and the forward pass of one scan.

A way to make values is a `Values`, which says what it takes, and the `Pass` that it makes of one
scan. Who runs or differentiates a scan asks these two; nobody asks which class they are of.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

from parscan_bp.choice.facts import Choice
from parscan_bp.devices import Place
from parscan_bp.forward import ForwardReport
from parscan_bp.jaxprs.hoist import Hoist
from parscan_bp.jaxprs.read import scan_counts, split_operands
from parscan_bp.jaxprs.stage import Staged
from parscan_bp.linearise.answered import Answered
from parscan_bp.linearise.body import Body
from parscan_bp.originals import lax_scan
from parscan_bp.primitives.with_rule import of_type
from parscan_bp.scan.linear_scan import AdjointKernel
from parscan_bp.scan.step import Step
from parscan_bp.scan.systems import before
from parscan_bp.scan.values.trajectory import run_with_trajectory
from parscan_bp.solvers import Solver, Sweep
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


class PassResult(NamedTuple):
    """What a forward pass makes, as `run_with_trajectory`; and its answers, see `Answered`."""

    carry: list[Array]
    ys: list[Array]
    after: list[Array]
    answers: list[Array]

    @property
    def outs(self) -> list[Array]:
        """(carry, ys)."""
        return [*self.carry, *self.ys]


RunScan = Callable[[Sequence[Array], Extra], tuple[list[Any], list[Any]]]
"""``(args, extra) -> (carry, ys)`` of a scan, ``args = [*consts, *init, *xs]``."""

Prepared = Callable[[Sequence[Array], Extra], tuple[Extra, ForwardReport | None]]
"""``(args, extra) -> (extra, what is told of it)``; see `Pass.prepared`."""


class Values(abc.ABC):
    """What ``forward=`` means. Hashable: a plan is kept by it.

    Attributes:
      by_default: whether nobody has to ask for it, and a call may be left to `jax.lax.scan`.
    """

    by_default: ClassVar[bool] = False

    @property
    def gain(self) -> str | None:
        """What `explain` says of it where it could be asked for; ``None`` for nothing."""
        return None

    def obstacle(self, staged: Staged, body: Body) -> str | None:
        """Why it cannot make the values of a scan, if it cannot, as an error says it."""
        return None

    @abc.abstractmethod
    def of(self, step: Step, *, adjoins: bool) -> Pass:
        """The forward pass of the scan of a step.

        Args:
          step: the step.
          adjoins: whether it may have an `adjoint` of its own, as nobody named another one.
        """


class Pass(abc.ABC):
    """The forward pass of one scan.

    Attributes:
      exact: whether its values are those of `jax.lax.scan`, bit for bit.
      scan: makes one step after the other, by the step's own program, as `jax.lax.scan` does but
        for rounding; ``None`` where all steps are there at once.
    """

    exact: bool = False
    scan: Callable | None = None

    @abc.abstractmethod
    def run(self, loop: ScanLoop, args: Sequence[Array], states: Sequence[Array]) -> PassResult:
        """What it makes.

        Args:
          loop: the scan.
          args: of the body's loop.
          states: see `Extra`; of a method, what it made.
        """

    @property
    def in_steps(self) -> bool:
        """Whether it makes one step after the other: so it may be run in stretches, and keep what
        a step makes on its way."""
        return self.scan is not None

    @property
    def is_native(self) -> bool:
        """Whether on a CPU it is one native function."""
        return False

    def prepared(self, loop: ScanLoop) -> Prepared:
        """What it makes before anything is differentiated."""
        return lambda args, extra: (extra, None)

    @property
    def adjoint(self) -> AdjointKernel | None:
        """What solves for the cotangents, if that goes with it."""
        return None

    def choice(self, choose: Callable[[], Choice]) -> Choice:
        """The solver, where nobody named one.

        Args:
          choose: the choice for the values of `jax.lax.scan`.
        """
        return choose()

    def obstacle_at(self, place: Place) -> str | None:
        """Why it cannot be run where a solver wants the steps, if it cannot."""
        return None


def for_carries_alone(choice: Choice) -> Choice:
    """A choice for values of which the carries are kept, and nothing else."""
    if choice.solver is None or choice.solver.keeps:
        return Choice(Sweep(), "the forward pass is another one, and keeps the carries alone")
    return choice


@dataclasses.dataclass(frozen=True, eq=False)
class ScanLoop:
    """A traced `lax.scan` as a forward pass.

    Attributes:
      equation: the traced `lax.scan`, bound as it is for the values.
      body: its step, of the constants that `hoisted` makes.
      solver: has its say where the pass is run.
      values: makes its values.
      hoist: what the step makes of its constants alone, if anything; the linearised body, and the
        loops of derivatives, get it as constants.
      answered: the step with its answers, if it has any.
    """

    equation: Any
    body: Body
    solver: Solver
    values: Pass
    hoist: Hoist | None = None
    answered: Answered | None = None

    @property
    def asked(self) -> Body:
        """The step that gives its answers, too, as outputs after its own."""
        return self.body if self.answered is None else self.answered.asked

    @property
    def how(self) -> dict[str, Any]:
        return {name: self.equation.params[name] for name in ("length", "reverse", "unroll")}

    @property
    def is_placed(self) -> bool:
        """Whether the solver has the steps run elsewhere than where the loop stands."""
        return not self.solver.place.is_one

    @property
    def is_plain(self) -> bool:
        """Whether it is `lax.scan`'s own, run where it stands."""
        return self.values.exact and not self.is_placed

    def of(self, solver: Solver, length: int) -> ScanLoop:
        """The same step so many times."""
        params = {**self.equation.params, "length": length}
        return dataclasses.replace(
            self, solver=solver, equation=self.equation.replace(params=params)
        )

    def by(self, values: Pass) -> ScanLoop:
        """The same with other values."""
        return dataclasses.replace(self, values=values)

    def run(self, args: Sequence[Array], states: Sequence[Array] = ()) -> PassResult:
        """The forward pass, for the arguments of the body's loop; see `Pass.run`."""
        return self.values.run(self, args, states)

    def outs(self, args: Sequence[Array], states: Sequence[Array]) -> list[Array]:
        """(carry, ys) for the arguments of the equation: exactly what it makes, if it is plain.

        Args:
          args: of the equation.
          states: see `Pass.run`.
        """
        if self.is_plain:
            return self.equation.primitive.bind(*args, **self.equation.params)
        made = self.run(self.hoisted(args), states).outs
        return [of_type(v, out.aval) for v, out in zip(made, self.equation.outvars, strict=True)]

    def plain(self, args: Sequence[Array]) -> list[Array]:
        """(carry, ys) of `lax.scan` for the arguments of the body's loop."""
        if self.hoist is None:
            return self.equation.primitive.bind(*args, **self.equation.params)
        consts, init, xs = self.body.split(args)
        carry, ys = lax_scan(lambda c, x: self.body(consts, c, x), init, xs, **self.how)
        return [*carry, *ys]

    @functools.cached_property
    def step_by_step(self) -> Callable[[Callable], Callable]:
        """``scan -> (args -> Made)``, where the solver wants the steps.

        ``scan`` makes them one after the other, as `jax.lax.scan` does.
        """

        @functools.cache
        def made(scan):
            def loop(consts, init, xs):
                how = {**self.how, "scan": scan}
                return run_with_trajectory(self.asked, consts, init, xs, **how)[:3]

            placed = self.solver.place.placed(loop, reverse=self.how["reverse"])

            def run(args):
                carry, ys, after = placed(*self.body.split(args))
                return PassResult(carry, *self.apart(ys, after))

            return run

        return made

    def apart(self, ys: list[Array], after: list[Array]) -> tuple[list[Array], ...]:
        """``(ys, after, answers)``, of the outputs of `asked`."""
        n = len(self.body.y_avals)
        return ys[:n], after, ys[n:]

    def answers(self, args: Sequence[Array], after: Sequence[Array]) -> list[Array]:
        """The answers at carries that something else made."""
        if self.answered is None:
            return []
        consts, init, xs = self.body.split(args)
        entering = before(init, after, 0, self.how["length"], reverse=self.how["reverse"])
        step = self.body.mapped(lambda carry, x: self.asked(consts, carry, x)[1])
        return self.apart(step(entering, list(xs)), list(after))[2]

    def everywhere(self, run: Callable[[Solver, int], RunScan]) -> RunScan:
        """The scan wherever its solver wants its steps: one rule for those of each, see `Place`.

        Args:
          run: ``(solver, n)`` -> a scan of n steps in one place.
        """
        solver, place = self.solver, self.solver.place
        obstacle = place.obstacle(self.equation.params["jaxpr"].jaxpr)
        if obstacle is not None:
            raise NotImplementedError(f"f: solver={solver!r}: {obstacle}")
        consts, carry = scan_counts(self.equation)
        end = consts + carry
        inputs = len(self.equation.invars) - end

        @functools.cache
        def here(solver, n):
            call = run(solver, n)

            def scan(shared, init, xs):
                xs, states = xs[:inputs], xs[inputs:]
                return call([*shared[0], *init, *xs], Extra(shared[1], states))

            return scan

        run_each, run_rest = (functools.partial(here, of) for of in (solver, solver.here))
        length, reverse = self.how["length"], self.how["reverse"]
        spread = place.spread(run_each, run_rest, length, reverse=reverse)

        def call(args, extra):
            args = list(args)
            whole = args[:consts], extra.jacobian
            return spread(whole, args[consts:end], [*args[end:], *extra.states])

        return call

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
