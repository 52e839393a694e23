"""`while_loop`: the contract of `jax.lax.while_loop`, and every derivative."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import JaxprEqn

from parscan_bp.arguments import as_int, check_bool
from parscan_bp.jaxprs.stage import Staged, is_jit_disabled, trace_call
from parscan_bp.loops.costs import costs_of
from parscan_bp.loops.finish import LoopReport, check_finished
from parscan_bp.loops.loop import Loop
from parscan_bp.loops.nest import MOST_STEPS, nest_within
from parscan_bp.originals import lax_while_loop
from parscan_bp.scan.api import checked_solver
from parscan_bp.scan.traces import MOST
from parscan_bp.solvers import Solver
from parscan_bp.types import PyTree


def while_loop(
    cond: Callable,
    body: Callable,
    init: PyTree,
    *,
    max_steps: int | None = None,
    memory_limit: int | None = None,
    solver: Solver | None = None,
    report: bool = False,
) -> Any:
    """TODO."""
    if max_steps is not None:
        max_steps = as_int("max_steps", max_steps)
        if max_steps > MOST_STEPS:
            raise ValueError(f"max_steps: got {max_steps:,}; at most {MOST_STEPS:,} is wanted")
    solver = checked_solver(solver, "auto", memory_limit)
    check_bool("report", report)
    if is_jit_disabled():
        value, steps, finished = _by_python(cond, body, init, max_steps)
    else:
        value, steps, finished = _traced(cond, body, init, max_steps, memory_limit, solver, report)
    if report:
        return value, LoopReport(steps, finished)
    if max_steps is not None:
        check_finished(finished, max_steps)
    return value


def _by_python(cond, body, init, max_steps):
    """The loop where Python runs it, which JAX differentiates step by step."""

    def goes_on(state):
        return cond(state[0]) & (max_steps is None or state[1] < max_steps)

    state = init, jnp.int32(0)
    value, steps = lax_while_loop(goes_on, lambda state: (body(state[0]), state[1] + 1), state)
    return value, steps, ~jnp.asarray(cond(value))


def _traced(cond, body, init, max_steps, memory_limit, solver, report):
    """The value of the loop, its steps and whether it finished, where these are asked for."""
    closed, tree = trace_call(functools.partial(lax_while_loop, cond, body), init)
    staged = Staged.of(closed, tree, "while")
    assert staged is not None, "jax.lax.while_loop makes a loop"
    if staged.hi_type is not None:
        raise NotImplementedError(f"init: {staged.hi_type}, of which no loop can be run again")
    loop = _loop_of(_Traced.of(staged.equation), max_steps, memory_limit, solver)
    told: list[Any] = [None, None]

    def run(args):
        if max_steps is None and not report:
            return loop.carry(args)
        *carry, told[0], told[1] = loop.counted(args)
        return carry

    return staged.run(jax.tree.leaves(init), run), *told


@dataclasses.dataclass(frozen=True)
class _Traced:
    """A traced loop, equal to one of the same programs: JAX keeps those of a function.

    Attributes:
      programs: its cond and body, and how much they close over.
      types: of its operands.
      equation: the loop.
    """

    programs: tuple[tuple[str, Any], ...]
    types: tuple[Any, ...]
    equation: JaxprEqn = dataclasses.field(compare=False)

    @classmethod
    def of(cls, equation: JaxprEqn) -> _Traced:
        types = tuple(v.aval for v in equation.invars)
        return cls(tuple(sorted(equation.params.items())), types, equation)


@functools.lru_cache(maxsize=MOST)
def _loop_of(
    traced: _Traced, max_steps: int | None, memory_limit: int | None, solver: Solver | None
) -> Loop:
    """The loop with its derivatives."""
    bound, costs = max_steps or MOST_STEPS, None
    if solver is not None or memory_limit is not None:
        costs = costs_of(traced.equation, solver, min(bound, 16))
    nest = nest_within(bound, costs, memory_limit)
    return Loop(traced.equation, max_steps, nest, solver)
