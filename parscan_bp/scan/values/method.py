"""``forward=`` a method: the values of a scan by a parallel evaluation that is certified.

That comes before the differentiation rule, which takes what was made for the values and the
carries: a method is never differentiated.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from parscan_bp.arguments import described
from parscan_bp.forward import Forward, ForwardReport
from parscan_bp.forward.evaluate import LoopFunctions, certified_run
from parscan_bp.jaxprs.batching import NOT_KNOWN
from parscan_bp.jaxprs.obstacles import replicated_output
from parscan_bp.jaxprs.read import differentiable, is_differentiable, scan_counts
from parscan_bp.jaxprs.replay import vary_alike, varying_with
from parscan_bp.linearise.body import Body
from parscan_bp.originals import lax_scan
from parscan_bp.primitives.with_rule import WithRule, of_type
from parscan_bp.primitives.zeros import empty_of, zeros_of
from parscan_bp.scan.step import Step
from parscan_bp.scan.values.base import (
    Extra,
    Pass,
    PassResult,
    RunScan,
    ScanLoop,
    Values,
    for_carries_alone,
)
from parscan_bp.solvers.base import Solver
from parscan_bp.structure import underivable, unsupported
from parscan_bp.trees import replace_at
from parscan_bp.types import Array

WANTED = (jnp.float32, jnp.float64)
"""Dtypes of carries. Short ones have a rounding floor of the size of what is to be told."""


@dataclasses.dataclass(frozen=True)
class Method(Values):
    """What ``forward=`` a method of `parscan_bp.forward` means.

    Attributes:
      method: without its guess, which is an argument of the call.
    """

    method: Forward

    def __repr__(self):
        return repr(self.method)

    def obstacle(self, staged, body):
        why = staged.symbolic_size
        outputs = [body.jaxpr.out_avals[k] for k in body.float_carry]
        outputs += [body.y_avals[j] for j in body.float_y]
        why = why or replicated_output(outputs, filter(is_differentiable, body.jaxpr.in_avals))
        reasons = unsupported(body.jaxpr)
        none = underivable(body.jaxpr, body.num_consts, body.num_carry)
        reasons += [none] if none else []
        if reasons:
            why = f"the step contains {reasons[0].primitive}: {reasons[0].message}"
        elif body.unbatchable is not None:
            why = f"the step contains {body.unbatchable}, which {NOT_KNOWN}"
        other = [a for a in body.carry_avals if a.dtype not in WANTED]
        if other:
            why = (
                f"the carry has a leaf of {other[0].dtype}, and a certificate takes float32 and "
                "float64: what counts or draws may be an input, made of jnp.arange or split keys, "
                "and the random streams of a layer in its broadcast_rngs"
            )
        return why and f"forward={self!r}: {why}; forward='exact' takes any step"

    def of(self, step, *, adjoins):
        return _ByMethod(step, self.method)


@dataclasses.dataclass(frozen=True, eq=False)
class _ByMethod(Pass):
    """The values of a scan by a method.

    Attributes:
      scanned: its step.
      method: which one.
    """

    scanned: Step
    method: Forward

    def run(self, loop, args, states):
        carry, ys, after = self._run(*self.scanned.body.split(args), list(states))
        return PassResult(carry, ys, after, loop.answers(args, after))

    def prepared(self, loop):
        return _Prepared(self, loop)

    def choice(self, choose):
        return for_carries_alone(choose())

    def obstacle_at(self, place):
        if self.method.over_devices and self.method.certify == "estimate":
            return None
        return "this takes them in one place; Chunks() and 'estimate' go over devices"

    @functools.cached_property
    def _run(self) -> Callable[..., tuple[list[Array], list[Array], list[Array]]]:
        """``(consts, init, xs, states) -> (carry, ys, after)``, of what `evaluate` made."""

        @jax.jit
        def run(consts, init, xs, states):
            # Who reads the program is to see that they depend on what they are made of.
            floats = differentiable(states)
            made = [states[k] for k in floats], empty_of((consts, init, xs))
            tied, _ = lax.optimization_barrier(varying_with(made, made))
            states = replace_at(states, floats, tied)
            after, own = (
                states[: self.scanned.body.num_carry],
                states[self.scanned.body.num_carry :],
            )
            ys = {j: after[k] for j, k in self.scanned.body.forwarded.items()}
            ys.update(zip(self._own, own, strict=True))
            end = 0 if self.scanned.reverse else -1
            outs = [a[end] for a in after] + [ys[j] for j in sorted(ys)]
            outs = list(map(of_type, outs, self.scanned.body.jaxpr.out_avals))
            return outs[: len(after)], outs[len(after) :], after

        return run

    def evaluate(
        self,
        consts: Sequence[Array],
        init: Sequence[Array],
        xs: Sequence[Array],
        guess: Sequence[Array],
        solver: Solver,
        length: int,
        missing: int,
    ) -> tuple[ForwardReport, list[Array]]:
        """The report without states; and these, with the outputs that are more than a new carry.

        Args:
          consts, init, xs: of the steps that are here.
          guess: states to begin with, if there are any.
          solver: has its say where the steps are.
          length: the number of those that are here.
          missing: so many at the end of the scan, wherever that is, are none.
        """
        line = solver.place.line(reverse=self.scanned.reverse)
        consts, init, xs, guess = vary_alike(tuple(map(list, (consts, init, xs, guess))))
        step: Any = self._step
        own_xs: Any = self._turned(xs)
        if line is not None:
            init = varying_with(line.from_first(init), init)
        if line is not None and missing:
            step, own_xs = _or_nothing(step), (own_xs, line.is_among(length, missing))
        start = self._turned(guess) or None
        functions = LoopFunctions(step, self._sequential(step, solver, length))
        args = consts, init, own_xs, length, start, line
        after, own, told = certified_run(self.method, functions, *args)
        made = [*self._turned(after), *self._turned(own)]
        return dataclasses.replace(told, states=()), made

    @property
    def _own(self) -> list[int]:
        """The outputs that are more than the new carry."""
        return [
            j for j in range(len(self.scanned.body.y_avals)) if j not in self.scanned.body.forwarded
        ]

    def _step(self, consts, carry, x):
        new, ys = self.scanned.body(consts, carry, x)
        return new, [ys[j] for j in self._own]

    def _sequential(self, step, solver, length):
        """One step after the other, where the solver has the exact pass run."""

        def loop(consts, init, xs):
            def one(carry, x):
                new, own = step(consts, carry, x)
                return new, (new, own)

            carry, (after, own) = lax_scan(one, init, xs, length=length, unroll=self.scanned.unroll)
            return carry, own, after

        placed = solver.place.placed(loop, reverse=self.scanned.reverse)

        def sequential(consts, init, xs):
            _, own, after = placed(consts, init, xs)
            return after, own

        return sequential

    def _turned(self, stacked: Sequence[Array]) -> list[Array]:
        """In the order of the steps, or back."""
        return [a[::-1] for a in stacked] if self.scanned.reverse else list(stacked)


def _or_nothing(step):
    """The step of inputs that come with whether there is one: else the carry stays as it is."""

    def call(consts, carry, x):
        x, is_one = x
        new, own = step(consts, carry, x)
        return [jnp.where(is_one, a, b) for a, b in zip(new, carry, strict=True)], own

    return call


@dataclasses.dataclass(frozen=True, eq=False)
class _Prepared:
    """What a method makes of a scan, wherever its steps are. Functions are made once, so that JAX
    caches them.

    Attributes:
      values: the method.
      loop: the scan.
    """

    values: _ByMethod
    loop: ScanLoop

    def __call__(self, args: Sequence[Array], extra: Extra) -> tuple[Extra, ForwardReport]:
        """What was made, in the place of what the method begins with; and what it tells."""
        args, extra = jax.lax.stop_gradient((list(args), extra))
        length, reverse = (self.loop.how[name] for name in ("length", "reverse"))
        # In all places there are equally many steps, of which those beyond the last do nothing.
        places = (
            self.loop.solver.place.count(args) if self.loop.solver.place.has_all_steps else None
        )
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
    def _everywhere(self) -> Callable[[int], RunScan]:
        """``(args, extra) -> (what is told, states and outputs)``, with so many steps missing."""

        @functools.cache
        def everywhere(missing):
            def run(solver, n):
                return self._in_one_place(solver, n, missing)

            length = self.loop.how["length"] + missing
            return self.loop.of(self.loop.solver, length).everywhere(run)

        return everywhere

    def _in_one_place(self, solver: Solver, n: int, missing: int) -> RunScan:
        @jax.jit
        def evaluate(args, extra):
            values = self.loop.body.split(self.loop.hoisted(args))
            told, states = self.values.evaluate(*values, extra.states, solver, n, missing)
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


def checked_guess(guess: Any, body: Body, length: int) -> list[Array]:
    """The leaves of a guess, which are those of the carry over all steps.

    Raises:
      ValueError: if their number or shapes are others.
      TypeError: if their dtypes are, or they are no arrays.
    """
    try:
        leaves, wanted = list(map(jnp.asarray, jax.tree.leaves(guess))), body.carry_avals
    except TypeError as error:
        raise TypeError(f"guess: got {described(guess)}; a pytree of arrays is wanted") from error
    if len(leaves) != len(wanted):
        raise ValueError(
            f"guess: got {len(leaves)} arrays; the carry has {len(wanted)} that a step changes, "
            "and a guess is all of them over all steps"
        )
    for k, (leaf, aval) in enumerate(zip(leaves, wanted, strict=True)):
        shape = (length, *aval.shape)
        if leaf.shape != shape:
            raise ValueError(f"guess: leaf {k} has the shape {leaf.shape}; {shape} is wanted")
        if leaf.dtype != aval.dtype:
            raise TypeError(f"guess: leaf {k} is of {leaf.dtype}; {aval.dtype} is wanted")
    return leaves
