"""What of a step is kept for the backward pass: the fewest bytes that spare it all but arithmetic.

A result of a step is a chain of operations. Some are slow to do again (products, exponentials),
others as fast as reading what they make. So a forward pass keeps values that lie between the last
slow operation and the result, where there are the fewest of them: gates, say, rather than the
slopes that follow from them.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Collection, Sequence

from jax.extend.core import ClosedJaxpr, JaxprEqn, Var

from parscan_bp.jaxprs.arithmetic import is_arithmetic, is_elementwise
from parscan_bp.jaxprs.decisions import mixed
from parscan_bp.jaxprs.read import depending, part, shape_of, variables
from parscan_bp.jaxprs.replay import evaluate, inlined
from parscan_bp.trees import nbytes
from parscan_bp.types import Array

FEW = 4
"""Numbers of which a function is no slower than reading them: in a loop over so few, it waits for
nothing that the loop waits for."""

WORTHWHILE = 4 / 5
"""Bytes of a cut, as a part of those of the results, up to which they are made from it."""


@dataclasses.dataclass(frozen=True, eq=False)
class Cut:
    """A program in two parts, the first of which is done once and its results kept.

    Attributes:
      closed: the program.
      kept: its variables that are kept.
    """

    closed: ClosedJaxpr
    kept: tuple[Var, ...]

    @classmethod
    def of(cls, closed: ClosedJaxpr, first: int) -> Cut:
        """The cut with the fewest bytes, or the results where it has hardly fewer than they.

        Then a cut in front of functions of few inputs is tried: those are at hand. Without any
        other part it would spare nothing.

        Args:
          closed: the program.
          first: position of the first input of which there is one per step. All inputs are at hand
            in both parts, and what follows from earlier ones alone is made in both.
        """
        closed = inlined(closed)
        for few in (0, FEW):
            search = _Search(closed, first, few)
            kept, results = search.decided(), search.results()
            if _bytes(kept) <= WORTHWHILE * _bytes(results) and (kept or not few):
                return cls(closed, kept)
        return cls(closed, results)

    def make(self, inputs: Sequence[Array]) -> list[Array]:
        """The values that are kept."""
        jaxpr = self.closed.jaxpr
        first = part(jaxpr, jaxpr.invars, self.kept)
        return evaluate(ClosedJaxpr(first, self.closed.consts), inputs)

    def finish(self, inputs: Sequence[Array], kept: Sequence[Array]) -> list[Array]:
        """The results of the program, from what was kept."""
        return evaluate(self.second, [*(inputs[k] for k in self.read), *kept])

    @functools.cached_property
    def read(self) -> tuple[int, ...]:
        """The inputs that the second part reads, by their positions."""
        jaxpr = self.closed.jaxpr
        second = part(jaxpr, jaxpr.invars, jaxpr.outvars, self.kept)
        atoms = itertools.chain(second.outvars, *(eqn.invars for eqn in second.eqns))
        needed = set(variables(list(atoms)))
        return tuple(k for k, v in enumerate(jaxpr.invars) if v in needed)

    @functools.cached_property
    def second(self) -> ClosedJaxpr:
        """The second part: the results, from the inputs that it reads, and what was kept."""
        jaxpr = self.closed.jaxpr
        inputs = [*(jaxpr.invars[k] for k in self.read), *self.kept]
        return ClosedJaxpr(part(jaxpr, inputs, jaxpr.outvars, self.kept), self.closed.consts)


class _Search:
    """The variables of a program from which its results follow by arithmetic alone."""

    def __init__(self, closed: ClosedJaxpr, first: int, few: int):
        self.jaxpr = closed.jaxpr
        self.made_by = {v: e for e in self.jaxpr.eqns for v in e.outvars}
        # Of each variable its own, or two that one equation makes would be kept in any order.
        self.order = {v: k for k, v in enumerate(self.made_by)}
        self.varies = depending(self.jaxpr, self.jaxpr.invars[first:])
        fast = (is_arithmetic(e) or self._is_fast(e, few) for e in self.jaxpr.eqns)
        slow = (e for e, is_fast in zip(self.jaxpr.eqns, fast, strict=True) if not is_fast)
        self.slow = {v for e in slow for v in e.outvars}

    def _is_fast(self, eqn: JaxprEqn, few: int) -> bool:
        """Whether it is a function of inputs, and of few numbers at most."""
        stored = not self.order.keys() & variables(eqn.invars)
        return stored and is_elementwise(eqn) and math.prod(shape_of(eqn.outvars[0])) <= few

    def results(self) -> tuple[Var, ...]:
        """The results that are neither inputs nor the same for every step."""
        made = dict.fromkeys(v for v in variables(self.jaxpr.outvars) if v in self.order)
        return tuple(v for v in made if v in self.varies)

    def decided(self) -> tuple[Var, ...]:
        """`fewest`, with the answer of each comparison of what is kept with what it was made of."""
        kept = self.fewest()
        while compared := mixed(self.jaxpr, kept):
            self.slow.update(v for eqn, _ in compared for v in eqn.outvars)
            kept = self.fewest()
        return kept

    def fewest(self) -> tuple[Var, ...]:
        """The last slow results, exchanged for later values as long as those are no more bytes."""
        kept, between = self._reached(())
        moved = True
        while moved:
            moved = False
            for v in self._ordered(kept):
                later = {w for e in self.jaxpr.eqns if v in e.invars for w in e.outvars} & between
                others, within = self._reached((kept - {v}) | later)
                if later and self._gain(others) > self._gain(kept):
                    kept, between, moved = others, within, True
                    break
        return tuple(self._ordered(kept))

    def _ordered(self, of: Collection[Var]) -> list[Var]:
        return sorted(of, key=self.order.__getitem__)

    def _gain(self, kept: Collection[Var]) -> tuple[int, int, list[int]]:
        """Fewer bytes, fewer arrays, or later ones: it grows with every exchange, or none ends."""
        return -_bytes(kept), -len(kept), [self.order[v] for v in self._ordered(kept)]

    def _reached(self, held: Collection[Var]) -> tuple[set[Var], set[Var]]:
        """Going back from the results: what is slow or ``held``, and all that was passed."""
        ends, passed = set(), set()
        waiting = variables(self.jaxpr.outvars)
        while waiting:
            v = waiting.pop()
            if v in passed or v not in self.varies:
                continue
            passed.add(v)
            if v in held or v in self.slow:
                ends.add(v)
            elif v in self.made_by:
                waiting += variables(self.made_by[v].invars)
        return ends, passed


def _bytes(kept: Collection[Var]) -> int:
    return nbytes([v.aval for v in kept])
