"""The equation of a step, at any depth, that a bad number comes from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.extend.core import ClosedJaxpr, JaxprEqn

from parscan_bp.diagnose.derivatives import Some
from parscan_bp.diagnose.levels import BEYOND, NAN, firsts, worst, worst_entry
from parscan_bp.diagnose.origins import MadeArray, MadeArrays, cotangents_of, tangents_of, values_of
from parscan_bp.diagnose.passes import pull_cotangents, push_tangents, push_values
from parscan_bp.diagnose.steps import StepLoop
from parscan_bp.jaxprs.hijax import kind_of
from parscan_bp.jaxprs.primitive_kinds import CALLS, CUSTOM_CALLS
from parscan_bp.jaxprs.read import called
from parscan_bp.jaxprs.replay import evaluate


class BadSource(NamedTuple):
    """Where a bad number comes from.

    Attributes:
      eqn: the equation whose operands are better than what it makes; ``None`` if it came in.
      inner: of equations inside of loops, the step of each, from outside to inside.
      by: the position of the input by which it came in; ``None`` if it is not known.
      results: of the equation: their level.
      entry: of what was followed back, the index of the worst number.
      within: the calls, branches and loops that it is in, from inside to outside.
    """

    eqn: JaxprEqn | None = None
    inner: tuple[int, ...] = ()
    by: int | None = None
    results: int = 0
    entry: tuple[int, ...] = ()
    within: tuple[JaxprEqn, ...] = ()


@dataclasses.dataclass(frozen=True)
class Search:
    """Looks for the origin of bad numbers in one step, equation by equation.

    A call, a branch and a loop are gone into, for values, tangents and cotangents alike; but not
    into what brings its own derivative, for the latter two. An array is followed back to the worst
    of the sources of its equation, in operations that act entry by entry to the worst there; what
    is selected nowhere is not followed.

    Attributes:
      threshold: the largest magnitude that is fine; infinity to look for what is not finite.
    """

    threshold: float

    def value(self, program: ClosedJaxpr, values: Sequence[Any], k: int) -> BadSource:
        """That of the k-th result."""
        env = values_of(program, values)

        def inside(made: MadeArray) -> BadSource | None:
            return self._value_inside(made, env.read(made.eqn.invars))

        return self._origin(program, env, env, program.jaxpr.outvars[k], inside)

    def tangent(self, program: ClosedJaxpr, values: Sequence[Any], dots: Some, k: int) -> BadSource:
        """That of the tangent of the k-th result, for those of the inputs."""
        env = values_of(program, values)
        tangents = tangents_of(program, env, dots)

        def inside(made: MadeArray) -> BadSource | None:
            atoms = made.eqn.invars
            return self._tangent_inside(made, env.read(atoms), tangents.read_derivatives(atoms))

        return self._origin(program, env, tangents, program.jaxpr.outvars[k], inside)

    def cotangent(
        self, program: ClosedJaxpr, values: Sequence[Any], cts: Some, k: int
    ) -> BadSource:
        """That of the cotangent of the k-th input, for those of the results."""
        env = values_of(program, values)
        cotangents = cotangents_of(program, env, cts)

        def inside(made: MadeArray) -> BadSource | None:
            given = cotangents.read_derivatives(made.eqn.outvars)
            return self._cotangent_inside(made, env.read(made.eqn.invars), given)

        return self._origin(program, env, cotangents, program.jaxpr.invars[k], inside)

    def _origin(
        self,
        program: ClosedJaxpr,
        env: MadeArrays,
        arrays: MadeArrays,
        variable: Any,
        inside: Callable[[MadeArray], BadSource | None],
    ) -> BadSource:
        entry = worst_entry(arrays.read([variable])[0], self.threshold)
        origin = arrays.origin(variable, self.threshold)
        if not isinstance(origin, MadeArray):
            inputs = program.jaxpr.invars
            return BadSource(by=inputs.index(origin) if origin in inputs else None, entry=entry)
        deeper = inside(origin)
        if deeper is not None and deeper.eqn is not None:
            return deeper._replace(entry=entry, within=(*deeper.within, origin.eqn))
        results = [worst(v)[0] for v in env.read(origin.eqn.outvars)]
        return BadSource(origin.eqn, results=max(results), entry=entry)

    def _value_inside(self, made: MadeArray, values: Sequence[Any]) -> BadSource | None:
        eqn, k = made.eqn, made.position
        kind = kind_of(eqn)
        if kind in CALLS | CUSTOM_CALLS:
            return self.value(called(eqn), values, k)
        if kind == "cond":
            return self.value(_branch(eqn, values), values[1:], k)
        if kind == "while":
            return self._in_while(eqn, values)
        if kind != "scan":
            return None
        steps = StepLoop.of_equation(eqn, values)
        run = push_values(steps, self.threshold)
        for row, column in firsts(run.levels, run.before, (BEYOND, NAN)):
            found = self.value(steps.body, steps.operands(run.carries, row), column)
            return found._replace(inner=(steps.index(row), *found.inner))
        return None

    def _in_while(self, eqn: JaxprEqn, values: Sequence[Any]) -> BadSource | None:
        test, body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        tested, constants = values[:test], values[test : test + body]
        carry, step = list(values[test + body :]), 0
        start = [worst(v, self.threshold)[0] for v in carry]
        while evaluate(eqn.params["cond_jaxpr"], [*tested, *carry])[0]:
            new = list(evaluate(eqn.params["body_jaxpr"], [*constants, *carry]))
            for column, (v, before) in enumerate(zip(new, start, strict=True)):
                if worst(v, self.threshold)[0] > before:
                    found = self.value(eqn.params["body_jaxpr"], [*constants, *carry], column)
                    return found._replace(inner=(step, *found.inner))
            carry, step = new, step + 1
        return None

    def _tangent_inside(
        self, made: MadeArray, values: Sequence[Any], dots: Some
    ) -> BadSource | None:
        eqn, k = made.eqn, made.position
        kind = kind_of(eqn)
        if kind in CALLS:
            return self.tangent(called(eqn), values, dots, k)
        if kind == "cond":
            return self.tangent(_branch(eqn, values), values[1:], dots[1:], k)
        if kind != "scan":
            return None
        steps = StepLoop.of_equation(eqn, values)
        run = push_values(steps, self.threshold)
        consts, init, xs = steps.parts(dots)
        pushed = push_tangents(steps, run, (consts, init, xs), self.threshold, scaled=False)
        before = np.zeros(pushed.levels.shape[1])
        for row, column in firsts(pushed.levels, before, (BEYOND, NAN)):
            given = steps.operands(pushed.carries, row, consts, xs)
            found = self.tangent(steps.body, steps.operands(run.carries, row), given, column)
            return found._replace(inner=(steps.index(row), *found.inner))
        return None

    def _cotangent_inside(
        self, made: MadeArray, values: Sequence[Any], cts: Some
    ) -> BadSource | None:
        eqn, k = made.eqn, made.position
        kind = kind_of(eqn)
        if kind in CALLS:
            return self.cotangent(called(eqn), values, cts, k)
        if kind == "cond":
            return self.cotangent(_branch(eqn, values), values[1:], cts, k - 1)
        if kind != "scan":
            return None
        steps = StepLoop.of_equation(eqn, values)
        run = push_values(steps, self.threshold)
        last, ys = cts[: len(steps.init)], cts[len(steps.init) :]
        pulled = pull_cotangents(steps, run, last, ys, self.threshold)
        for back, column in firsts(pulled.levels[::-1], pulled.before, (BEYOND, NAN)):
            row = steps.length - 1 - back
            given = steps.entry([*pulled.carries, *ys], row)
            found = self.cotangent(steps.body, steps.operands(run.carries, row), given, column)
            return found._replace(inner=(steps.index(row), *found.inner))
        return None


def _branch(eqn: JaxprEqn, values: Sequence[Any]) -> ClosedJaxpr:
    """The branch of a condition that is taken."""
    branches = eqn.params["branches"]
    return branches[int(np.clip(int(values[0]), 0, len(branches) - 1))]
