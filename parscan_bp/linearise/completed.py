"""Known values that a loop makes itself, from others that it reads anyway.

The products of a chain rule read a gate z, and 1 - z, and z (1 - z). A loop over steps waits for
what it reads, and not for two operations more; so it reads z alone, and the other two are neither
made nor stored ahead of it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, Var
from jax.tree_util import Partial

from parscan_bp.jaxprs.arithmetic import is_arithmetic, is_elementwise
from parscan_bp.jaxprs.read import needed_equations, variables
from parscan_bp.jaxprs.replay import evaluate
from parscan_bp.linearise.per_step import PerStep
from parscan_bp.types import Array

FEW = 2
"""Operations that are sooner done again, in a loop, than their result is read."""


@dataclasses.dataclass(frozen=True, eq=False)
class Completed:
    """A function of the fewest leaves of another one.

    Attributes:
      make: all leaves of ``function`` from those few.
      function: pytree structure of a `Partial`.
    """

    make: ClosedJaxpr
    function: Any

    def __call__(self, few: list[Array], *args):
        return jax.tree.unflatten(self.function, evaluate(self.make, few))(*args)

    @property
    def func(self) -> Any:
        """What the `Partial` calls."""
        return jax.tree.unflatten(self.function, range(self.function.num_leaves)).func


def of_fewest(steps: PerStep) -> PerStep:
    """The same functions, `Completed` from those of their leaves that do not follow from others.

    Args:
      steps: makes a `Partial` for each step.
    """
    jaxpr = steps.jaxpr.jaxpr
    left = _that_follow(steps)
    if not left:
        return steps
    pairs = zip(jaxpr.outvars, steps.varies, strict=True)
    few = {v: varies for v, varies in pairs if isinstance(v, Var) and v not in left}
    make = _part(jaxpr, list(few), jaxpr.outvars, constvars=[], invars=list(few))
    first = ClosedJaxpr(_part(jaxpr, (), list(few)), steps.jaxpr.consts)
    completed = Partial(Completed(ClosedJaxpr(make, ()), steps.tree), list(few.values()))
    tree = jax.tree.structure(completed)
    return PerStep(first, steps.shared, tree, tuple(few.values()))


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


def _part(jaxpr: Jaxpr, given: Sequence[Var], outs: Sequence[Any], **changes) -> Jaxpr:
    """What makes ``outs`` of the inputs and the values that are ``given``."""
    names = jaxpr.debug_info._replace(arg_names=None, result_paths=None)
    part = jaxpr.replace(outvars=list(outs), debug_info=names, **changes)
    return part.replace(eqns=needed_equations(part, given))
