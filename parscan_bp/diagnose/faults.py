"""The first steps where something is bad, and the operation that each comes from."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence

import numpy as np
from jax.extend.core import JaxprEqn

from parscan_bp.diagnose.derivatives import Some
from parscan_bp.diagnose.diagnosis import Fault, Operation
from parscan_bp.diagnose.levels import BEYOND, INFINITE, NAN, WORDS, firsts, of_each
from parscan_bp.diagnose.passes import Cotangents, StepValues, Tangents
from parscan_bp.diagnose.search import BadSource, Search
from parscan_bp.diagnose.steps import Names, StepLoop
from parscan_bp.diagnose.target import Objective
from parscan_bp.jaxprs.hijax import kind_of
from parscan_bp.jaxprs.primitive_kinds import CUSTOM_CALLS
from parscan_bp.jaxprs.read import called_jaxpr
from parscan_bp.jaxprs.source import line_of


class Faults:
    """Those of a loop.

    Attributes:
      steps, names, values: the loop.
      threshold: the largest magnitude that is fine.
    """

    def __init__(self, steps: StepLoop, names: Names, values: StepValues, threshold: float) -> None:
        self.steps, self.names, self.values, self.threshold = steps, names, values, threshold

    @functools.cached_property
    def _bad(self) -> np.ndarray:
        """For each step, whether it takes or makes what is not finite, and was finite in init."""
        values, carries = self.values, len(self.steps.init)
        bad = (values.levels >= INFINITE) & (self._before < INFINITE)
        entering = np.zeros(len(bad), bool)
        entering[1:] = bad[:-1, :carries].any(axis=1)
        return entering | bad.any(axis=1)

    def of_values(self) -> Iterator[Fault]:
        """NaN that came with init; then the first of each level in the order of running."""
        steps, names, values = self.steps, self.names, self.values
        if NAN in values.before:  # and in all that follows
            for name in self._names_in_init(NAN):
                yield Fault("carry", None, name, WORDS[NAN])
            return
        for row, k in firsts(values.levels, self._before, (BEYOND, INFINITE, NAN)):
            found = self._origin(row, k)
            quantity = "carry" if k < len(steps.init) else "output"
            yield self._fault(quantity, row, names.outputs[k], values.levels[row, k], found)

    @functools.cached_property
    def _before(self) -> np.ndarray:
        """The level that a carry or an output may have: an output of what is infinite in init."""
        levels, before = self.values.levels, self.values.before.copy()
        first, carries = len(self.steps.consts), len(self.steps.init)
        handed_on = True
        while handed_on:
            handed_on = False
            for row, k in firsts(levels, before, (INFINITE,)):
                by = self._origin(row, k).by
                carry = -1 if by is None else by - first
                if k >= carries and 0 <= carry < carries and before[carry] == INFINITE:
                    before[k], handed_on = INFINITE, True
        return before

    def _origin(self, row: int, k: int) -> BadSource:
        """Where the k-th result of a step comes from."""
        steps, values = self.steps, self.values
        search = self._search(values.levels[row, k])
        return search.value(steps.body, steps.operands(values.carries, row), k)

    def remarks(self) -> list[str]:
        """What is no fault."""
        names = self._names_in_init(INFINITE)
        return [f"{name} is infinite in init: of it, NaN alone is a fault" for name in names]

    def _names_in_init(self, level: int) -> list[str]:
        pairs = zip(self.names.outputs, self.values.before, strict=True)
        return [name for name, found in pairs if found == level]

    def of_target(self, target: Objective) -> Iterator[Fault]:
        """Of the loss and of its derivative, if what it is of is fine."""
        if self._bad.any() or NAN in self.values.before:
            return
        search, found = Search(math.inf), of_each([target.loss, *target.cotangents], math.inf)
        level, *others = found.tolist()
        if level:
            yield _fault("loss", None, "the loss", level, target.value(search))
            return
        for k, level in enumerate(others):
            if level:
                where = target.cotangent(search, k)
                yield _fault("cotangent", None, self.names.outputs[k], level, where)

    def of_jacobian(self, tangents: Tangents) -> Iterator[Fault]:
        """The first of each level in the order of running, where values are finite."""
        steps, none = self.steps, [None] * (len(self.names.inputs) - len(self.steps.init))
        consts, xs = none[: len(steps.consts)], none[len(steps.consts) :]
        for row, k in firsts(tangents.levels, _zeros(tangents.levels), (BEYOND, INFINITE)):
            if self._bad[row]:
                return
            given = [*consts, *steps.entry(tangents.carries, row), *xs]
            values = steps.operands(self.values.carries, row)
            level = tangents.levels[row, k]
            found = self._search(level).tangent(steps.body, values, given, k)
            yield self._fault("Jacobian", row, self.names.outputs[k], level, found)

    def of_cotangents(self, cotangents: Cotangents, ys: Some) -> Iterator[Fault]:
        """The first of each level from the last step back, where values are finite.

        Args:
          cotangents: of all steps.
          ys: those of the outputs, that were given.
        """
        steps, levels = self.steps, cotangents.levels[::-1]
        # The carry's before those of constants.
        order = np.roll(np.arange(levels.shape[1]), -len(steps.consts))
        places = firsts(levels[:, order], cotangents.before[order], (BEYOND, INFINITE))
        for back, column in places:
            row, k = steps.length - 1 - back, int(order[column])
            if self._bad[row]:
                return
            given = steps.entry([*cotangents.carries, *ys], row)
            values = steps.operands(self.values.carries, row)
            level = levels[back, k]
            found = self._search(level).cotangent(steps.body, values, given, k)
            yield self._fault("cotangent", row, self.names.inputs[k], level, found)

    def _search(self, level: int) -> Search:
        """What is not finite did not arise where the threshold was passed."""
        return Search(self.threshold if level == BEYOND else math.inf)

    def _fault(self, quantity: str, row: int, leaf: str, level: int, found: BadSource) -> Fault:
        names = () if quantity == "cotangent" else self.names.inputs
        return _fault(quantity, self.steps.index(row), leaf, level, found, names)


def _fault(
    quantity: str,
    step: int | None,
    leaf: str,
    level: int,
    found: BadSource,
    names: Sequence[str] = (),
) -> Fault:
    by = None
    if names and found.eqn is None:
        by = "a constant of the step" if found.by is None else names[found.by]
    operation = None
    if found.eqn is not None:
        # What a function of JAX's does has no line of the user's; the call has.
        lines = filter(None, map(line_of, (found.eqn, *found.within)))
        file, line, function = next(lines, (None, None, None))
        hidden = quantity in ("Jacobian", "cotangent") and found.results >= INFINITE
        operation = Operation(_named(found.eqn), file, line, function, found.inner, hidden)
    return Fault(quantity, step, leaf, WORDS[level], found.entry, operation, by)


def _named(eqn: JaxprEqn) -> str:
    """The name of the primitive, with that of the function that it calls."""
    kind = kind_of(eqn)
    if kind not in CUSTOM_CALLS:
        return kind
    return f"{kind} of {called_jaxpr(eqn).debug_info.func_name}"


def _zeros(levels: np.ndarray) -> np.ndarray:
    return np.zeros(levels.shape[1])
