"""`scan`: the contract of `jax.lax.scan`, derivatives by a solver."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax

from parscan_bp.arguments import check_bool, described
from parscan_bp.cells import Cell
from parscan_bp.choice import choose
from parscan_bp.forward import Auto, Forward
from parscan_bp.jaxprs.hijax import is_hi_type
from parscan_bp.jaxprs.stage import copied, is_jit_disabled
from parscan_bp.linearise.cell import CellBody
from parscan_bp.linearise.given import check_jacobian_argument
from parscan_bp.memory_limit import MemoryLimit, as_limit
from parscan_bp.originals import lax_scan
from parscan_bp.report import Report, report_on_values
from parscan_bp.scan.decide import IN_PYTHON, make_plan, or_left
from parscan_bp.scan.plan import Left, ScanPlan
from parscan_bp.scan.segments import Segmented, segmented
from parscan_bp.scan.traces import MOST, Traces, TracesOf, plan_anew
from parscan_bp.scan.values.auto import decided
from parscan_bp.scan.values.base import Values
from parscan_bp.scan.values.exact import EXACT
from parscan_bp.scan.values.kernels import Fused
from parscan_bp.scan.values.options import checked_forward
from parscan_bp.solvers import Solver, check_solver
from parscan_bp.types import PyTree


def scan(
    f: Callable,
    init: PyTree,
    xs: PyTree = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    *,
    _split_transpose: bool = False,
    solver: Solver | None = None,
    forward: str | Fused | Forward | Auto = "exact",
    jacobian: str | Callable = "auto",
    memory_limit: int | MemoryLimit | None = None,
    reset: Any = None,
    seq_lengths: Any = None,
    check_jacobian: bool = False,
    report: bool = False,
) -> tuple[PyTree, ...]:
    """`jax.lax.scan` with derivatives by the solution of a bi-diagonal system.

    Values are those of `jax.lax.scan`, by the same traced loop, unless ``forward`` asks for others.
    Derivatives, of every order and mode, come from

        lambda_{t-1} = g_{t-1} + J_t^T lambda_t        (BPPSA eq. 3)

    solved by ``solver``, and from batched products for parameters and inputs. The carries are
    stored, and nothing else. docs/reference.md has the details of each argument.

    Args:
      f: step ``(carry, x) -> (carry, y)``. ``functools.partial(cell, params)`` with a cell of
        `parscan_bp.cells` is linearised by the cell's own Jacobian.
      init, xs, length, reverse, unroll, _split_transpose: as in `jax.lax.scan`.
      solver: a solver, which runs or raises; ``None`` chooses one, or `jax.lax.scan` itself, and
        `explain` says which and why.
      forward: "exact"; "fused", one native function or GPU kernel, off by rounding; a method of
        `parscan_bp.forward` or its name, as "chunks", whose values are certified; "auto" or
        `Auto`, which leaves the choice to what was measured.
      jacobian: "auto"; "dense" or "diagonal", by automatic differentiation; or a function
        ``(carry, x, new_carry) -> operator`` that returns the transposed Jacobian of a step, on
        the carry's leaves joined along their features.
      memory_limit: bytes that derivatives may store, an int. Steps are made again for that. A
        `MemoryLimit` can keep carries in the host's memory.
      reset: booleans of the steps and of the batch, which is the leading axes of the carry: where a
        step begins with ``init``, or with the state of a pair ``(booleans, state)``.
      seq_lengths: integers of the batch: how many steps each entry has. Behind them its carry
        stays, its outputs are zero, and nothing is read.
      check_jacobian: compares the Jacobian of the first two steps with random products of the
        step's derivative; needs concrete values.
      report: whether a `Report` is returned, on derivatives, or on the values of a method.

    Returns:
      ``(carry, ys)`` as `jax.lax.scan`; with ``report=True``, ``(carry, ys, report)``.

    Raises:
      TypeError, ValueError: as `jax.lax.scan`; or for an option that is not known.
      NotImplementedError: if a named solver, or ``forward``, cannot take the step or the device.

    Example:
      >>> import jax, jax.numpy as jnp, parscan_bp as pb
      >>> step = lambda h, x: (jnp.tanh(0.5 * h + x), h)
      >>> jax.grad(lambda xs: pb.scan(step, 0.0, xs)[0])(jnp.zeros(3)).tolist()
      [0.25, 0.5, 1.0]
    """
    if reset is not None or seq_lengths is not None:
        f, xs = segmented(f, init, xs, length, reset, seq_lengths)
    solver = checked_solver(solver, jacobian, memory_limit)
    check_bool("report", report)
    check_bool("check_jacobian", check_jacobian)
    values = checked_forward(forward, report)
    how = loop_options(length, reverse, unroll, _split_transpose)
    if left_to_lax(solver, jacobian, values.by):
        result = lax_scan(f, init, xs, **how)
        return (*result, report_on_values(result)) if report else result
    plan_by = functools.partial(plan_of, f, init, xs, how, solver, jacobian)
    plan_with = lambda by: plan_by(by, memory_limit)[0]  # noqa: E731
    plan, args = plan_by(values.by, memory_limit)
    values, plan = decided(values, plan, args, plan_with)
    if check_jacobian:
        plan.check_jacobian(args)
    anew = isinstance(f, Segmented)  # a function that no trace of JAX is kept for
    if isinstance(plan, Left) or (plan.rule is None and plan.stored is None and not anew):
        result = lax_scan(f, copied(init), copied(xs), **how)
        return (*result, report_on_values(result, fell_back=plan.fell_back)) if report else result
    result, told = plan(args, guess=values.guess, report=report)
    return (*result, _in_carry(told, init)) if report else result


def _in_carry(told: Report, init: PyTree) -> Report:
    """The report, the states of a forward pass by a method in the structure of the carry."""
    tree: Any = jax.tree.structure(init)
    if told.forward is None or len(told.forward.states) != tree.num_leaves:
        return told  # a leaf that no step changes is no part of the loop
    states = jax.tree.unflatten(tree, told.forward.states)
    forward = dataclasses.replace(told.forward, states=states)
    return dataclasses.replace(told, forward=forward)


def loop_options(length, reverse, unroll, _split_transpose=False) -> dict[str, Any]:
    """The arguments of `jax.lax.scan` that say how to loop, by name."""
    names = ("length", "reverse", "unroll", "_split_transpose")
    return dict(zip(names, (length, reverse, unroll, _split_transpose), strict=True))


_WITHIN: contextvars.ContextVar[bool] = contextvars.ContextVar("parscan_bp_within", default=False)


@contextlib.contextmanager
def within() -> Iterator[None]:
    """Traces somebody else's loop: `scan`, which may stand for `jax.lax.scan`, is that loop."""
    token = _WITHIN.set(True)
    try:
        yield
    finally:
        _WITHIN.reset(token)


def left_to_lax(solver: Solver | None, jacobian: str | Callable, values: Values) -> str | None:
    """Why a call is left to `jax.lax.scan` whatever its step is, if it is.

    Nothing that the caller named is.
    """
    if solver is not None or not values.by_default or jacobian != "auto":
        return None
    if is_jit_disabled():
        return IN_PYTHON
    return "a layer's own loop is taken by the layer's solver" if _WITHIN.get() else None


def checked_solver(solver, jacobian, memory_limit) -> Solver | None:
    """The solver under the call's memory limit, the options of the call being valid."""
    check_solver(solver, "uniform")
    check_jacobian_argument(jacobian)
    limit = as_limit(memory_limit)
    return solver if solver is None or limit is None else solver.with_memory_limit(limit.bytes)


def parameters_of(f: Callable) -> tuple[Cell | None, PyTree]:
    """The cell of a step, if it is one, and what the step takes beside the carry and its input."""
    return (None, f.state) if isinstance(f, Segmented) else as_cell(f)


def as_cell(f: Callable) -> tuple[Cell | None, PyTree]:
    """The cell and parameters of ``functools.partial(cell, params)``; ``None`` for other steps."""
    if isinstance(f, Cell):
        raise TypeError(
            f"f: got {described(f)}, a cell without its parameters; functools.partial(cell, "
            "params) is wanted"
        )
    if isinstance(f, functools.partial) and isinstance(f.func, Cell):
        if len(f.args) == 1 and not f.keywords and _are_arrays(f.args[0]):
            return f.func, f.args[0]
    return None, None


def _are_arrays(tree: PyTree) -> bool:
    """Whether JAX takes all leaves for arrays."""
    try:
        for leaf in jax.tree.leaves(tree):
            jax.typeof(leaf)
    except (TypeError, OverflowError):
        return False
    return True


def _has_axes(x: Any) -> bool:
    """Whether an array that JAX takes has axes; of other values it knows itself."""
    return hasattr(x, "shape") or is_hi_type(jax.typeof(x))


def plan_of(f, init, xs, how: dict[str, Any], solver, jacobian, values=EXACT, memory_limit=None):
    """The plan of a call, or that it is left, and the call's flat arguments.

    The plan is one that was made before, if JAX has the trace of the call from before.

    Args:
      how: the `loop_options`.
      f, init, xs, solver, jacobian, memory_limit: see `scan`.
      values: whence the values come.
    """
    cell, params = parameters_of(f)
    args = params, init, xs
    if not _are_arrays((init, xs)) or not all(map(_has_axes, jax.tree.leaves(xs))):
        # JAX would not get as far as to call the step, and says so in the words of jax.lax.scan.
        lax_scan(f, init, xs, **how)
    shown = args if solver is None else (params, *solver.place.traced_as(init, xs))
    # With the type: unroll=True is not unroll=1.
    loop = tuple((name, type(value), value) for name, value in how.items())

    def make(staged):
        trees: tuple[Any, Any, Any] = tuple(map(jax.tree.structure, args))  # type: ignore[assignment]
        of_cell = None
        if cell is not None:
            leading = staged.const_positions(staged.outer.invars[: trees[0].num_leaves])
            of_cell = CellBody(cell, leading, tuple(range(trees[1].num_leaves)), trees)
        options = {"solver": solver, "jacobian": jacobian, "values": values}
        return make_plan(staged, trees, cell=of_cell, memory_limit=memory_limit, **options)

    def plan():
        traces = _traces_of(f, cell)
        if traces is not None:
            options = (solver, values, memory_limit, choose.state())
            return traces.plan(loop, shown, make, options, jacobian)
        return plan_anew(_call_of(lambda params: _with(f, params)), loop, shown, make)

    return or_left(plan, solver, values), jax.tree.leaves(args)


def _call_of(step_of: Callable[[PyTree], Callable]) -> Callable:
    """What is traced: the scan of the step for some parameters, which are the first arguments."""

    def call(loop, params, init, xs):
        how = {name: value for name, _, value in loop}
        return lax_scan(step_of(params), init, xs, **how)

    return call


def _with(f: Callable, params: PyTree) -> Callable:
    """A step with other `parameters_of` it."""
    if isinstance(f, Segmented):
        return Segmented(f.step, params)
    return f if params is None else functools.partial(f.func, params)  # type: ignore[attr-defined]


def _traces_of(f: Callable, cell: Cell | None) -> Traces | None:
    """The traces of a step, where it came before; ``None`` if it cannot be recognised."""
    if isinstance(f, Segmented):
        return _OF_SEGMENTED(f.step)
    if cell is None:
        return _OF_STEPS(f)
    return _of_value(cell) if "is_value" in vars(type(cell)) and cell.is_value else _OF_CELLS(f)


_OF_STEPS = TracesOf(lambda get: _call_of(lambda _: get()))
_OF_SEGMENTED = TracesOf(lambda get: _call_of(lambda state: Segmented(get(), state)))
_OF_CELLS = TracesOf(lambda get: _call_of(lambda params: functools.partial(get().func, params)))


@functools.lru_cache(maxsize=MOST)
def _of_value(cell: Cell) -> Traces:
    return Traces(_call_of(lambda params: functools.partial(cell, params)))


def plans_of(f: Callable) -> list[ScanPlan]:
    """The plans that are kept for a step."""
    traces = _traces_of(f, as_cell(f)[0])
    return [] if traces is None else [p for p in traces.plans if isinstance(p, ScanPlan)]
