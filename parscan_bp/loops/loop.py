"""A traced while loop with its derivatives."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import JaxprEqn

from parscan_bp.jaxprs.read import is_differentiable, names_axis
from parscan_bp.jaxprs.replay import alike, bind, evaluate, varying_as
from parscan_bp.loops.nest import MOST_STEPS, Nest
from parscan_bp.loops.stretches import run_nest, stepped_by
from parscan_bp.originals import lax_scan, lax_while_loop
from parscan_bp.primitives.pushforward import Pushforward, is_forward_only
from parscan_bp.primitives.with_rule import WithRule
from parscan_bp.primitives.zeros import filled, nonzero, zeros_of
from parscan_bp.scan.api import scan
from parscan_bp.solvers import Solver
from parscan_bp.trees import replace_at
from parscan_bp.types import Array


@dataclasses.dataclass(frozen=True, eq=False)
class WhileLoop:
    """A traced `lax.while_loop`. Functions are made once, so that JAX caches them.

    Arguments are ``[*tested, *stepped, *init]``: what cond and body close over, the first carry.

    Attributes:
      equation: the traced loop.
      bound: the most steps that it may run; ``None`` for any.
      nest: how it is run again for derivatives.
      solver: the solver of a stretch; ``None`` for `lax.scan`.
    """

    equation: JaxprEqn
    bound: int | None
    nest: Nest
    solver: Solver | None

    def _split(self, args: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """What cond and body close over, and the first carry."""
        a = self.equation.params["cond_nconsts"]
        b = a + self.equation.params["body_nconsts"]
        return list(args[:a]), list(args[a:b]), list(args[b:])

    @functools.cached_property
    def carry(self) -> Callable[[list[Array]], list[Array]]:
        """``args -> carry`` of a loop without a bound, by JAX's own."""

        def jvp(primals, tangents):
            outs, ts = self._differentiate(primals, tangents)
            return outs[:-2], ts[:-2]

        return WithRule(lambda args: bind(self.equation, args), jvp)

    @functools.cached_property
    def counted(self) -> Callable[[list[Array]], list[Array]]:
        """``args -> [*carry, steps, finished]``."""
        return WithRule(self._count, self._differentiate)

    def _count(self, args: Sequence[Array]) -> list[Array]:
        tested, stepped, init = self._split(args)

        def test(carry):
            return evaluate(self.equation.params["cond_jaxpr"], [*tested, *carry])[0]

        def goes_on(state):
            carry, steps = state
            return test(carry) if self.bound is None else test(carry) & (steps < self.bound)

        def once(state):
            carry, steps = state
            made = evaluate(self.equation.params["body_jaxpr"], [*stepped, *carry])
            return made, steps + 1

        carry, steps = lax_while_loop(goes_on, once, (init, jnp.int32(0)))
        finished = jnp.bool_(True) if self.bound is None else ~test(carry)
        return [*carry, steps, finished]

    def _differentiate(self, primals, tangents):
        (args,), (ts,) = primals, tangents
        first = self.equation.params["cond_nconsts"]  # what cond reads has no derivative
        moving = tuple(k for k in nonzero(ts) if k >= first)
        if not moving:
            outs = self.counted(args)
            return outs, zeros_of(outs)
        self._check_repeatable()
        push, floats = self._pushforward(moving)
        at = [ts[k] for k in moving]
        if is_forward_only(args, ts):
            outs, pushed = push(args, at)
        else:
            outs, known = push.primal(args)
            pushed = push.tangent(args, known, at)
        out_ts = dict(zip(floats, pushed, strict=True))
        return outs, filled(outs, [out_ts.get(k) for k in range(len(outs))])

    def _check_repeatable(self) -> None:
        """Raises `NotImplementedError` if a step does what is not to be done again."""
        for effect in self.equation.params["body_jaxpr"].effects:
            if not names_axis(effect) and "Debug" not in str(effect):
                raise NotImplementedError(
                    f"body: has the effect {effect}; derivatives make steps again, and would have "
                    "it again. A value without a derivative may have it"
                )

    @functools.cached_property
    def _pushforward(self) -> Callable[..., tuple[Pushforward, tuple[int, ...]]]:
        """For tangents of some args; and which results have any."""
        return functools.cache(self._make_pushforward)

    def _make_pushforward(self, moving):
        avals = [v.aval for v in self.equation.invars]
        outs = jax.make_jaxpr(self._count)(avals).out_avals
        floats = tuple(k for k, a in enumerate(outs) if is_differentiable(a))

        def tangents_of(f, args, ts):
            run = lambda *moved: f(replace_at(args, moving, moved))  # noqa: E731
            made, pushed = jax.jvp(run, [args[k] for k in moving], ts)
            return list(made), [pushed[k] for k in floats]

        def together(args, ts):
            return tangents_of(self._count, args, ts)

        def primal(args):
            made = self.counted(list(args))
            return made, made[:-1]

        def tangent(args, known, ts):
            *carry, steps = known
            again = functools.partial(self._run_again, steps=steps)
            _, pushed = tangents_of(again, args, ts)
            pairs = zip(pushed, floats, strict=True)
            pushed = [varying_as(t, carry[k]) for t, k in pairs]
            return pushed if self.bound is not None else [_of_few(steps, t) for t in pushed]

        takes = avals, [avals[k].to_tangent_aval() for k in moving]
        gives = outs, [outs[k].to_tangent_aval() for k in floats]
        return Pushforward(together, primal, tangent, takes, gives), floats

    @functools.cached_property
    def _run_again(self) -> Callable[..., list[Array]]:
        """The carry after so many steps, by the nest."""
        by = lax_scan if self.solver is None else functools.partial(scan, solver=self.solver)

        @jax.jit
        def run_again(args, steps):
            steps, *args = alike([steps, *args])
            stepped = args[self.equation.params["cond_nconsts"] :]
            step, init = stepped_by(self.equation, stepped, steps)
            return run_nest(self.nest, step, init, steps, by)

        return run_again


def _of_few(steps: Array, tangent: Array) -> Array:
    """The tangent, which is not known of a loop that the nest does not hold."""
    few = (steps >= 0) & (steps <= MOST_STEPS)
    return jnp.where(few, tangent, jnp.nan)
