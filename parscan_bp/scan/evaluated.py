"""The forward pass of a scan by a method, wherever the steps are.

It comes before the differentiation rule, which takes what was made for the values and the carries:
a method is never differentiated.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from parscan_bp.forward import ForwardReport
from parscan_bp.jaxprs.read import scan_counts
from parscan_bp.primitives.with_rule import WithRule
from parscan_bp.primitives.zeros import zeros_of
from parscan_bp.scan.loop import Extra, Loop
from parscan_bp.scan.spread import Run, spread
from parscan_bp.solvers.base import Solver
from parscan_bp.types import Array


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluated:
    """What a method makes of a scan. Functions are made once, so that JAX caches them.

    Attributes:
      loop: the scan, its ``other`` by a method.
      solver: has its say where the steps are.
    """

    loop: Loop
    solver: Solver

    def __call__(self, args: Sequence[Array], extra: Extra) -> tuple[Extra, ForwardReport]:
        """What was made, in the place of what the method begins with; and what it tells."""
        args, extra = jax.lax.stop_gradient((list(args), extra))
        length, reverse = (self.loop.how[name] for name in ("length", "reverse"))
        # In all places there are equally many steps, of which those beyond the last do nothing.
        places = self.solver.place.count(args) if self.solver.place.has_all_steps else None
        missing = -length % (places or 1)
        if missing:
            first = sum(scan_counts(self.loop.equation))
            args[first:] = [_longer(a, missing, reverse) for a in args[first:]]
        told, states = self._everywhere(missing)(args, extra)
        if missing:
            steps = slice(missing, None) if reverse else slice(length)
            states = [a[steps] for a in states]
        after = states[: self.loop.body.num_carry]
        report = ForwardReport(*told, after)  # type: ignore[call-arg]
        return extra._replace(states=states), report

    @functools.cached_property
    def _everywhere(self) -> Callable[[int], Run]:
        """``(args, extra) -> (what is told, states and outputs)``, with so many steps missing."""

        @functools.cache
        def everywhere(missing):
            def run(solver, n):
                return self._in_one_place(solver, n, missing)

            length = self.loop.how["length"] + missing
            return spread(self.loop.of(self.solver, length), self.solver, run)

        return everywhere

    def _in_one_place(self, solver: Solver, n: int, missing: int) -> Run:
        method: Any = self.loop.other

        @jax.jit
        def evaluate(args, extra):
            values = self.loop.body.split(self.loop.hoisted(args))
            told, states = method.evaluate(*values, extra.states, solver, n, missing)
            return jax.tree.leaves(told), states

        def jvp(primals, tangents):
            made = call(*primals)
            return made, tuple(map(zeros_of, made))

        call = WithRule(evaluate, jvp)
        return lambda args, extra: call(list(args), extra)


def _longer(a: Array, missing: int, reverse: bool) -> Array:
    """With its last step, in the order of the scan, so many times more."""
    more = jnp.broadcast_to(a[:1] if reverse else a[-1:], (missing, *a.shape[1:]))
    return jnp.concatenate([more, a] if reverse else [a, more])
