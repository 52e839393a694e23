"""`scan`: the contract of `jax.lax.scan`, derivatives by a solver."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax

from parscan_bp.arguments import as_int, check_bool, described
from parscan_bp.cells import Cell
from parscan_bp.choice import choose
from parscan_bp.forward import Auto, Forward
from parscan_bp.jaxprs.hijax import is_hi_type
from parscan_bp.jaxprs.stage import copied, is_jit_disabled
from parscan_bp.linearise.cell import CellBody
from parscan_bp.linearise.given import check_jacobian_argument
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
    memory_limit: int | None = None,
    reset: Any = None,
    seq_lengths: Any = None,
    check_jacobian: bool = False,
    report: bool = False,
) -> tuple[PyTree, ...]:
    """`jax.lax.scan` with derivatives by the solution of a bi-diagonal system.

    Values are those of `jax.lax.scan`, by the same traced loop, unless ``forward`` asks for
    others. Its derivatives, of every order and mode, come from

        lambda_{t-1} = g_{t-1} + J_t^T lambda_t        (BPPSA eq. 3)

    solved by ``solver``, and from batched products for parameters and inputs. The carries
    are stored, and nothing else (not twice where they are outputs already). Give a
    ``memory_limit`` to store less, or name
    ``Sweep(recompute=False)`` to store what is slow to make again, too. What the step makes of its
    constants alone, such as a transposed weight matrix, is made once where the scan is
    differentiated, as by `jax.lax.scan`.
    Forward-mode alone, where ``solver=None`` chose `Sweep`, is `jax.lax.scan`'s own loop and
    stores nothing. Leaves of the carry and outputs that a derivative does not reach, over any
    number of steps, take no part in it: they cost nothing, and may have derivatives that are NaN.
    What is linear and only transposed, by `jax.linear_transpose` or as a scan of tangents in the
    rule of a `jax.custom_jvp`, has no derivative to solve for: it is transposed as `jax.lax.scan`.

    Args:
      f: step ``(carry, x) -> (carry, y)``. ``functools.partial(cell, params)`` with a cell
        of `parscan_bp.cells` is linearised by the cell's own Jacobian.
      init, xs, length, reverse, unroll: as in `jax.lax.scan`.
      _split_transpose: likewise, where the scan is left to `jax.lax.scan`; a solver always
        splits the gradients of parameters and inputs from the cotangents of the carry.
      solver: a solver, or ``None`` to choose by structure, sizes and platform. A step that
        the linear model does not hold (a ``custom_vjp``, a loop of dynamic length, effects, an
        operation that is a `HiPrim` and not JAX's own, a carry of a `HiType`) then runs through
        `jax.lax.scan` itself. So does a step that is mostly work, which a solver would make slower
        (`explain` says why), and a scan with symbolic sizes (`jax.export`), of which a named solver
        takes the values only; and one with collectives along a mapped axis, which a named solver
        takes unless it forms Jacobians that they couple, or an output is the same along an axis of
        `jax.shard_map` and what it is made of is not. So does a step with a primitive that is not
        known to commute with `jax.vmap`; a named solver linearises its steps one by one.
        A named solver refuses what it cannot take with an error; ``Sweep(otherwise="lax")`` leaves
        it to `jax.lax.scan`, too, as `explain` says.
        Under `jax.disable_jit` all scans with ``None`` are `jax.lax.scan`'s own, whose steps may
        look at their values; a named solver wants a step that can be traced, also then.
      forward: "exact", the values of `jax.lax.scan`; or "fused". On a CPU that is one native
        function for all steps, which llvmlite makes (the extra ``cpu``): of elementwise arithmetic,
        exp, log, logistic, sin, sqrt and tanh, and products with matrices that are the same in all
        steps, in float32 or float64. It differs from `jax.lax.scan` by rounding: of sums, and of
        functions, which are within three units in the last place. With ``solver=None`` the loop of
        the backward pass is native, too. Under an outer `jax.vmap` over the matrices, in
        `jax.export`, and where XLA partitions the program among devices, the loop is
        `jax.lax.scan`'s.
        On a GPU "fused" is one kernel for all steps of an `Elman`, `GRU`, `LSTM` or other
        `cells.Gated` in float32 or bfloat16, with float32 accumulation (`Fused` has its options).
        With ``solver=None`` the backward pass is such a kernel, too. Its values differ by rounding:
        in float32, with S the largest of 1 + |x| |W_i| + |h| |W_h| + |b| + |carry|, a step from the
        same carry is within (inputs + H + 16) eps S (1 + S) of exact arithmetic, as `jax.lax.scan`
        at highest precision is; what the next steps make of it is the recurrence's own condition.
        bfloat16 carries are rounded when they leave the kernel, not between the steps.
        Or a method that evaluates the recurrence in parallel, a `parscan_bp.forward.Forward` or its
        name, "chunks": its trajectory is certified, as its `certify`, `tolerance` and `fallback`
        say, or `jax.lax.scan` makes the values after all.
        Derivatives are those at the trajectory, by the same equation. Carries are float32 or
        float64, and a step that the linear model does not hold is refused. With a solver over
        devices, as `Sharded`, "chunks" goes over them; other methods are refused.
        Or "auto", or `Auto` with the same options, which allows a method and leaves the choice,
        `jax.lax.scan` among it, to what was measured: of this scan by `parscan_bp.autotune`, or of
        others like it, with a probe of the first steps, whose largest Lyapunov exponent says how
        many iterations to expect. Nothing is probed in a trace, as of `jax.jit`: there what was not
        measured is exact. With ``certify="bound"``, of which nothing was measured, all is.
        `explain` says what is chosen and why.
      jacobian: "auto", "dense" or "diagonal" for Jacobians by automatic differentiation, or
        a function ``(carry, x, new_carry) -> operator`` that returns the transposed Jacobian
        of one step, on the carry's leaves joined along their features, leading axes being
        batch axes. One operator that the whole batch shares, without its axes, is refused; it may
        be a factor of a `Product` with one that has them.
      memory_limit: bytes that derivatives may store, an int: the trajectory, and the Jacobians of a
        solver which forms them, whose own limit it replaces. Steps are then made again, stretch by
        stretch, in as many levels as it takes; docs/horizons.md says how, and `explain` what is
        stored. A limit that nothing meets is refused, with the least that would do. One that was
        remembered of solvers and needs more is left for what the rules choose. The axes of an outer
        `jax.vmap` are not seen: each of its entries may use so many. ``None`` stores all carries.
      reset: booleans of the steps and of the leading axes of the carry, its batch. Where true, a
        step begins with ``init`` instead of what the one before has left; or with another state,
        as the second of a pair ``(booleans, state)``.
      seq_lengths: integers of the leading axes of the carry: how many steps each entry of the batch
        has. Behind them its carry stays and its outputs are zero: the last carry is that of its
        last step, or ``init`` where it has none, and in reverse it begins with its last step.
        Leaves of ``xs`` have the same axes behind that of the steps, or none. What stands in the
        padding, a NaN included, reaches neither values nor derivatives.
      check_jacobian: debug check, at the first two steps. Compares the structure found with random
        products of the step's derivative; and what a given Jacobian or the cell states, whichever
        solver runs: products of its operators and of their `transpose` and `as_dense` (up to 2**24
        entries), the `after` of `closed` ones, and a cell's `jacobian`, `pull_carry` and, unless it
        has outputs of its own, `pull_params`. Raises with the class, the method and the offending
        entry. Needs concrete values: not under `jax.jit` or `jax.grad`. A step that the linear
        model does not hold, which is left to `jax.lax.scan`, is not looked at.
      report: whether a `Report` is returned as well. Its ``forward`` tells of the values where a
        method made them; else they are exact, and what it tells is how good derivatives are. The
        solver solves the equation above once more, at the carries of this call and for cotangents g
        of all of them that are not special, pseudo-random c and -c with a small c, and the residual
        is that of its lambda. It takes one more forward pass, which stores the carries, and one
        more backward pass without parameters; it is a result like others under every
        transformation, but its derivatives are zero. Where the call is left to `jax.lax.scan`, it
        says whether the values are finite.

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
    if memory_limit is None:
        return solver
    limit = as_int("memory_limit", memory_limit)
    return None if solver is None else solver.with_memory_limit(limit)


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
