"""What the steps of a scan do with integers that the program itself says, as a loop's counter."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Var, jaxpr_as_fun

from parscan_bp.jaxprs.read import open_jaxpr, part, scan_counts
from parscan_bp.jaxprs.stage import to_be_traced
from parscan_bp.originals import lax_scan
from parscan_bp.within.sites import Site

MOST = 8
"""Numbers in what is made of known integers: the indices of an array, one for each of its axes."""


class KnownIntegers:
    """The integers of a step that are the same for all data, in the order of the steps.

    A leaf of the carry is one if the program says what it begins with, and the step makes the next
    from nothing else: a counter, or two.
    """

    def __init__(self, site: Site):
        closed = site.equation.params["jaxpr"]
        self._jaxpr: Jaxpr = open_jaxpr(closed)
        self._consts = closed.consts
        self._length, self._reverse = (site.equation.params[k] for k in ("length", "reverse"))
        self._count, self._carry = scan_counts(site.equation)
        self._given = dict(zip(self._jaxpr.invars, site.known, strict=True))
        self._leaves = self._known_leaves()
        self._found: dict[Any, np.ndarray | None] = {}

    def of(self, atoms: Sequence[Any]) -> list[np.ndarray | None]:
        """For each atom of the step, its values at all steps; ``None`` where they are not known."""
        new = [v for v in atoms if isinstance(v, Var) and v not in self._found]
        within = [v for v in new if self._is_known([v])]
        made = self._run(within) if within else []
        self._found.update(dict.fromkeys(new) | dict(zip(within, made, strict=True)))
        every = (self._length,)
        return [
            np.full(every, atom.val) if isinstance(atom, Literal) else self._found[atom]
            for atom in atoms
        ]

    def _known_leaves(self) -> list[int]:
        first = self._count
        leaves = [
            k for k in range(self._carry) if _is_number(self._given[self._jaxpr.invars[first + k]])
        ]
        while True:
            kept = [k for k in leaves if self._is_known([self._jaxpr.outvars[k]], leaves)]
            if kept == leaves:
                return leaves
            leaves = kept

    def _inputs(self, leaves: Collection[int]) -> list[Var]:
        """The inputs of a step that are known, of the carry these leaves."""
        first, last = self._count, self._count + self._carry
        consts, xs = self._jaxpr.invars[:first], self._jaxpr.invars[last:]
        carry = [self._jaxpr.invars[first + k] for k in leaves]
        return [v for v in (*consts, *carry, *xs) if self._given[v] is not None]

    def _is_known(self, atoms: Sequence[Any], leaves: Collection[int] | None = None) -> bool:
        """Whether they are made of known integers alone, and cost nothing to make."""
        known = set(self._inputs(self._leaves if leaves is None else leaves))
        made = part(self._jaxpr, [], atoms)
        inner = {v for eqn in made.eqns for v in eqn.outvars}.union(made.constvars)
        read = [*(v for eqn in made.eqns for v in eqn.invars), *atoms]
        plain = all(math.prod(getattr(v.aval, "shape", (MOST,))) <= MOST for v in inner)
        return plain and all(v in inner or v in known for v in read if isinstance(v, Var))

    def _run(self, atoms: Sequence[Var]) -> list[np.ndarray]:
        """The numbers of all steps, by running these equations alone."""
        inputs = self._inputs(self._leaves)
        first, last = self._count, self._count + self._carry
        outs = [*(self._jaxpr.outvars[k] for k in self._leaves), *atoms]
        step_of = jaxpr_as_fun(ClosedJaxpr(part(self._jaxpr, inputs, outs), self._consts))
        carried = [self._jaxpr.invars[first + k] for k in self._leaves]
        xs = [v for v in inputs if v in self._jaxpr.invars[last:]]

        def step(carry, x):
            values = {**self._given, **dict(zip([*carried, *xs], [*carry, *x], strict=True))}
            made = step_of(*(values[v] for v in inputs))
            return made[: len(carried)], made[len(carried) :]

        with jax.ensure_compile_time_eval(), to_be_traced():
            begin = [jnp.asarray(self._given[v]) for v in carried]
            rows = [self._given[v] for v in xs]
            how = {"length": self._length, "reverse": self._reverse}
            made = [np.asarray(v) for v in lax_scan(step, begin, rows, **how)[1]]
        # Outputs stand where their inputs do; here the first step comes first.
        return [v[::-1] for v in made] if self._reverse else made


def _is_number(value: np.ndarray | None) -> bool:
    return value is not None and value.ndim == 0
