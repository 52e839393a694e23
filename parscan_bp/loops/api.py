"""`while_loop`: the contract of `jax.lax.while_loop`, and every derivative."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import JaxprEqn

from parscan_bp.arguments import as_int, check_bool, described
from parscan_bp.jaxprs.stage import Staged, is_jit_disabled, trace_call
from parscan_bp.loops.costs import costs_of
from parscan_bp.loops.finish import LoopReport, check_finished
from parscan_bp.loops.loop import WhileLoop
from parscan_bp.loops.nest import MOST_STEPS, nest_within
from parscan_bp.memory_limit import MemoryLimit, as_bytes
from parscan_bp.originals import lax_while_loop
from parscan_bp.primitives.with_rule import of_type
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
    memory_limit: int | MemoryLimit | None = None,
    solver: Solver | None = None,
    report: bool = False,
) -> Any:
    """`jax.lax.while_loop` with derivatives of every order and mode, at the cost of what ran.

        x_n = body(body(... body(init))),   n the first for which cond(x_n) is false

    Values are those of `jax.lax.while_loop`, by its own loop. So are tangents alone, which store
    nothing. Where something is transposed, the loop is run once more for it: n is known by then,
    and a nest of scans that holds any number of steps up to its bound runs n of them, rounded up to
    a stretch (of 16), and passes over the rest. Of each stretch the carry that enters it is stored;
    in the backward pass a stretch is made again. Short loops store one level of stretches, longer
    ones stretches of stretches: a step is made again once up to about 2,000, twice up to 260,000,
    and four times at most, unless ``memory_limit`` wants less to be stored. What is stored is
    reserved for the longest loop.

    Under `jax.vmap` every entry has an end of its own. What has finished is frozen, as by
    `jax.lax.while_loop`: the body is not differentiated there, so that one which is NaN or has an
    infinite slope at the last carry does no harm, and what no entry reaches is passed over.

    The derivative is that of the steps that ran: n is a constant of it. What the body tells, as by
    `jax.debug.print`, it tells again where steps are made again.

    Args:
      cond: ``carry -> bool``, as in `jax.lax.while_loop`. It has no derivative.
      body: ``carry -> carry``. Both may close over traced values; what ``body`` closes over has
        derivatives.
      init: first carry, a pytree of arrays; integers, booleans and random keys among them.
      max_steps: the most steps, an int of at most 2**30. A loop that would go on after so many
        raises, unless there is a report: none is cut off silently. ``None`` bounds nothing; of more
        than 2**30 steps derivatives are NaN. A bound takes less memory, and less to compile.
      memory_limit: bytes that derivatives may store, an int, or a `MemoryLimit` not offloaded:
        stretches are then shorter, and of more levels. A limit that nothing meets is refused, with
        the least that would do. The axes of an outer `jax.vmap` are not seen: each of its entries
        may use so many.
      solver: by which a stretch is differentiated, see `parscan_bp.scan`; ``None`` is
        `jax.lax.scan`, as stretches are short.
      report: whether a `LoopReport` of the steps is returned as well; then ``max_steps`` ends a
        loop without an error, and the value is that after so many steps.

    Returns:
      The last carry; with ``report=True``, ``(carry, report)``.

    Raises:
      TypeError, ValueError: as `jax.lax.while_loop`; or for an option that is not known.
      NotImplementedError: if a named solver cannot take the body.
      RuntimeError: if cond is still true after ``max_steps``. A compiled program raises it as a
        `jax.errors.JaxRuntimeError`, which is one, where its results are waited for.

    Source: checkpoints as by Griewank and Walther, ACM TOMS 26 (2000), algorithm 799, in levels
    instead of binomially. Stumm and Walther, SIAM J. Sci. Comput. 32 (2010), and Wang, Moin and
    Iaccarino, SIAM J. Sci. Comput. 31 (2009), place them while a loop of unknown length runs; here
    its length is known before the first is stored, for one more evaluation of each step.

    Example:
      >>> import jax, parscan_bp as pb
      >>> def root(a):
      ...     far = lambda x: abs(x * x - a) > 1e-5
      ...     return pb.while_loop(far, lambda x: (x + a / x) / 2, a, max_steps=30)
      >>> print(f"{root(4.0):.4f} {jax.grad(root)(4.0):.4f}")
      2.0000 0.2500
    """
    if max_steps is not None:
        max_steps = as_int("max_steps", max_steps)
        if max_steps > MOST_STEPS:
            raise ValueError(f"max_steps: got {max_steps:,}; at most {MOST_STEPS:,} is wanted")
    memory_limit = as_bytes(memory_limit, "a while loop keeps its carries on the device")
    solver = checked_solver(solver, "auto", memory_limit)
    check_bool("report", report)
    for leaf in jax.tree.leaves(init):
        _check_leaf(leaf)
    if is_jit_disabled():
        value, steps, finished = _by_python(cond, body, init, max_steps)
    else:
        value, steps, finished = _traced(cond, body, init, max_steps, memory_limit, solver, report)
    if report:
        return value, LoopReport(steps, finished)
    if max_steps is not None:
        check_finished(finished, max_steps)
    return value


def _check_leaf(leaf: Any) -> None:
    """Raises `TypeError` if JAX does not take a leaf of the carry for an array."""
    try:
        jax.typeof(leaf)
    except TypeError:
        raise TypeError(f"init: got {described(leaf)}; a pytree of arrays is wanted") from None


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
    if staged.symbolic_size is not None and (solver is not None or memory_limit is not None):
        asked = f"solver={solver!r}, memory_limit={memory_limit}"
        raise NotImplementedError(f"{asked}: {staged.symbolic_size}; None is wanted for both")
    loop = _loop_of(_Traced.of(staged.equation), max_steps, memory_limit, solver)
    told: list[Any] = [None, None]

    def run(args):
        types = [v.aval for v in staged.equation.invars]
        args = [of_type(v, aval) for v, aval in zip(args, types, strict=True)]
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
) -> WhileLoop:
    """The loop with its derivatives."""
    bound, costs = max_steps or MOST_STEPS, None
    if solver is not None or memory_limit is not None:
        costs = costs_of(traced.equation, solver)  # a named solver takes the body, or says so here
    nest = nest_within(bound, costs, memory_limit)
    return WhileLoop(traced.equation, max_steps, nest, solver)
