"""Known values that a loop makes itself, from others that it reads anyway.

The products of a chain rule read a gate z, and 1 - z, and z (1 - z). A loop over steps waits for
what it reads, and not for two operations more; so it reads z alone, and the other two are neither
made nor stored ahead of it.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import jax
from jax.extend.core import ClosedJaxpr, Var

from parscan_bp.jaxprs.arithmetic import is_arithmetic, is_elementwise
from parscan_bp.jaxprs.read import part, variables
from parscan_bp.jaxprs.replay import evaluate
from parscan_bp.linearise.linear_step import LinearStep
from parscan_bp.linearise.per_step import PerStep

FEW = 2
"""Operations that are sooner done again, in a loop, than their result is read."""


def rematerialise(step: LinearStep) -> LinearStep:
    """The same map, that reads none of what `FEW` operations make of the rest that it reads."""
    known, jaxpr = step.known, step.known.jaxpr.jaxpr
    left = _that_follow(known)
    if not left:
        return step
    few = [v for v in jaxpr.outvars if v not in left]
    consts = known.jaxpr.consts
    first = ClosedJaxpr(part(jaxpr, jaxpr.invars, few), consts)
    make = ClosedJaxpr(part(jaxpr.replace(constvars=[]), few, jaxpr.outvars, few), ())

    def run(k, v):
        return evaluate(step.apply, [*evaluate(make, k), *v])

    fewest = dataclasses.replace(known, jaxpr=first, tree=jax.tree.structure(few))
    return step.rewritten(run, known=fewest)


def _that_follow(steps: PerStep) -> set[Var]:
    """The results of `FEW` operations at most on other results; only such as vary count."""
    jaxpr = steps.jaxpr.jaxpr
    made_by = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}
    pairs = zip(jaxpr.outvars, steps.varies, strict=True)
    results = {v for v, varies in pairs if varies}

    @functools.cache
    def operations(v: Var) -> float:
        """How many make it of other results."""
        eqn = made_by.get(v)
        if eqn is None or not (is_arithmetic(eqn) and is_elementwise(eqn)):
            return math.inf
        return 1 + sum(operations(u) for u in variables(eqn.invars) if u not in results)

    return {v for v in results if operations(v) <= FEW}
