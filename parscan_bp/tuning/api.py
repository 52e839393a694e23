"""`autotune`: the solvers of a scan raced on this machine, and the winner remembered."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from parscan_bp.arguments import as_array, check_bool, check_number, described
from parscan_bp.choice import wisdom
from parscan_bp.choice.choose import Question, Trial, on_trial
from parscan_bp.forward import Auto, Forward
from parscan_bp.jaxprs.stage import is_jit_disabled
from parscan_bp.memory_limit import MemoryLimit, as_bytes
from parscan_bp.originals import lax_scan
from parscan_bp.scan.api import as_cell, loop_options, plan_of, scan
from parscan_bp.scan.values.options import NAMES
from parscan_bp.solvers import Solver
from parscan_bp.solvers.base import check_is_solver
from parscan_bp.tuning.candidates import LAX, solver_candidates
from parscan_bp.tuning.program import Compiled, GradientProgram, drawn
from parscan_bp.tuning.result import Tuning, decide, with_methods
from parscan_bp.types import PyTree

GROUPS = ("params", "init", "xs")
"""What `autotune` can differentiate."""
UNROLLED = (4, 16)
"""Steps per iteration with which `jax.lax.scan` takes part, too."""


def autotune(
    step: Callable,
    init: PyTree,
    xs: PyTree = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    *,
    wrt: Sequence[str] = GROUPS,
    solvers: Sequence[Solver] = (),
    forward: Sequence[str | Forward] = (),
    memory_limit: int | MemoryLimit | None = None,
    budget_s: float = 10.0,
    progress: bool = True,
) -> Tuning:
    """Races the solvers of a scan, value and gradient, and remembers the winner on this machine.

    From then on `scan` with ``solver=None`` takes it for this step, these types and about this
    length, in later processes, too; what was compiled before stays as it is. It is remembered only
    where its whole 95 % interval is 5 % better than what the rules choose. `jax.lax.scan` takes
    part unrolled, too, to be seen: ``unroll=`` is the caller's.

    Args:
      step, init, xs, length, reverse, unroll: as in `scan`. Arrays of ``init`` and ``xs`` may be
        `jax.ShapeDtypeStruct`: then numbers are drawn.
      wrt: what is differentiated, some of "params" (the arrays that the step closes over, or the
        parameters of ``functools.partial(cell, params)``), "init" and "xs".
      solvers: more that take part, such as your own. One that wins is remembered by its module and
        name, and taken where that module has been imported.
      forward: methods of the forward pass that take part, as `scan` takes them, such as
        ``("chunks", "newton")``. They make other values than `jax.lax.scan`, certified within the
        tolerance that they come with: so none does unless it is named here, and what is found is
        remembered for calls with ``forward="auto"`` alone.
      memory_limit: bytes of temporary memory that the winner may take, as the compiler tells them:
        the fastest of those is remembered, also where it is slower than the rules' choice.
      budget_s: seconds for the timing; compilation comes on top.
      progress: whether progress is shown on stderr.

    Returns:
      The result; ``print`` it. Where the winner cannot be remembered, a warning says so.

    Raises:
      ValueError, TypeError: for an option that is not known, for traced values, for a scan of which
        there is nothing to choose, as under `jax.disable_jit`, or a limit below all candidates.
      As `scan`.

    Example:
      >>> import jax.numpy as jnp, parscan_bp as pb
      >>> step = lambda h, x: (jnp.tanh(h @ (jnp.eye(8) / 2) + x), h)
      >>> carry, xs = jnp.zeros((4, 8)), jnp.ones((50, 4, 8))
      >>> print(pb.autotune(step, carry, xs))  # doctest: +SKIP
      value and gradient         ms         MB  over the rules' choice
      Sweep()                ...
    """
    _check_wrt(wrt)
    _check_options("autotune", budget_s, progress)
    limit = as_bytes(memory_limit, "candidates are raced with all they store on the device")
    how = loop_options(length, reverse, unroll)
    init, xs = jax.tree.map(drawn, (init, xs))
    plan, _ = plan_of(step, init, xs, how, None, "auto")
    if plan.rule is None and getattr(plan, "facts", None) is None:
        why = getattr(plan, "reason", None) or plan.choice.reason
        raise ValueError(f"step: got {described(step)}, of which there is nothing to choose: {why}")
    methods = _methods(forward)
    more = _solvers(solvers)
    params, step_of = _opened(step, init, xs)

    def program(loop: Callable) -> GradientProgram:
        def run(params, init, xs):
            return loop(step_of(params), init, xs)

        return GradientProgram(run, (params, init, xs), [GROUPS.index(name) for name in wrt])

    unrolled = {
        f"{LAX}, unroll={k}": program(functools.partial(lax_scan, **how | {"unroll": k}))
        for k in UNROLLED
    }
    scanned = program(functools.partial(scan, **how))
    race = _Races(scanned, "autotune", more, budget_s, progress, limit)
    (question,) = race.questions
    programs = {
        name: program(functools.partial(scan, **how, forward=method))
        for name, method in methods.items()
    }
    return with_methods(race.of(question, unrolled | programs), question.key, methods)


def _methods(forward: Sequence[str | Forward]) -> dict[str, Forward]:
    """The methods by what is printed of them.

    Raises:
      ValueError: if there is anything else.
    """
    found = {}
    alone = isinstance(forward, str) or not isinstance(forward, Sequence)
    for given in [forward] if alone else forward:
        made = NAMES[given]() if isinstance(given, str) and given in NAMES else given
        usual = isinstance(made, Forward) and made == Auto().certifying(made)
        if alone or not isinstance(made, Forward) or made.guess is not None or not usual:
            raise ValueError(
                f"forward: got {given!r}; methods of parscan_bp.forward without a guess and with "
                "the usual certificate, or their names, are wanted in a tuple"
            )
        found[f"forward={made!r}"] = made
    return found


def _solvers(solvers: Sequence[Solver]) -> dict[str, Solver]:
    """Those that a caller adds, by what is printed of them.

    Raises:
      TypeError, ValueError: if there is anything else, or one that cannot be remembered.
    """
    if isinstance(solvers, str) or not isinstance(solvers, Sequence):
        raise TypeError(f"solvers: got {described(solvers)}; a tuple of solvers is wanted")
    for solver in solvers:
        check_is_solver(solver, "in solvers=, one such as Sweep(), or of your own,")
        if not (solver.exact and solver.place.is_one):
            raise ValueError(
                f"solvers: got {solver!r}, which leaves something out, or divides the steps over "
                "devices; one that has the derivatives of jax.lax.scan, in one place, is wanted"
            )
        wisdom.check_can_be_written("solvers", solver)
    return {repr(solver): solver for solver in solvers}


def autotune_calls(
    fun: Callable[..., PyTree],
    *args: PyTree,
    solvers: Sequence[Solver] = (),
    budget_s: float = 10.0,
    progress: bool = True,
) -> tuple[Tuning, ...]:
    """`autotune` for every scan that a function runs with ``solver=None``, its layers' among them.

    A layer of `parscan_bp.nnx` or `parscan_bp.linen`, a loss, a training step: what is timed is the
    value and gradient of the whole function, with respect to all floats of its arguments, once
    with each candidate for one scan; the next scan is raced with what was found for the first.

    Args:
      fun: a function of arrays. What it calls of `jax.jit` and `jax.checkpoint` is traced anew for
        each candidate.
      args: its arguments, pytrees of arrays, or of `jax.ShapeDtypeStruct`: then numbers are drawn.
      solvers: more that take part, see `autotune`.
      budget_s: seconds for the timing of each scan.
      progress: see `autotune`.

    Returns:
      A result for each scan, in the order in which they are traced; equal ones are one.

    Raises:
      TypeError: if ``fun`` is no function, or an argument no arrays.
      ValueError: if ``fun`` runs no scan of which there is something to choose, or what it takes or
        closes over is traced; under `jax.disable_jit`.

    Example:
      >>> import jax.numpy as jnp, parscan_bp as pb
      >>> def loss(w, xs):
      ...     return pb.scan(lambda h, x: (jnp.tanh(h @ w + x), h), jnp.zeros((4, 8)), xs)[1].sum()
      >>> (found,) = pb.autotune_calls(loss, jnp.eye(8), jnp.ones((50, 4, 8)))  # doctest: +SKIP
    """
    if not callable(fun):
        raise TypeError(f"fun: got {described(fun)}; a function of arrays is wanted")
    _check_options("autotune_calls", budget_s, progress)
    args = tuple(
        jax.tree.map(lambda leaf, k=k: drawn(as_array(f"args[{k}]", leaf)), arg)
        for k, arg in enumerate(args)
    )
    program = GradientProgram(fun, args, range(len(args)))
    race = _Races(program, "autotune_calls", _solvers(solvers), budget_s, progress)
    if not race.questions:
        raise ValueError(
            f"fun: got {described(fun)}, which runs no scan with solver=None of which there is "
            "something to choose"
        )
    return tuple(race.of(question) for question in race.questions)


class _Races:
    """The scans of a program, whose solvers are raced one scan after the other."""

    def __init__(
        self,
        program: GradientProgram,
        name: str,
        more: Mapping[str, Solver],
        budget_s: float,
        progress: bool,
        memory_limit: int | None = None,
    ):
        self._program, self._name, self._more = program, name, more
        self._budget_s, self._progress, self._memory_limit = budget_s, progress, memory_limit
        with on_trial(Trial()) as heard:
            program.trace(name)
        self.questions = list(heard.asked.values())

    def of(self, question: Question, others: Mapping[str, GradientProgram] | None = None) -> Tuning:
        """Races the candidates for one of the questions; other programs take part beside them."""
        chosen = question.by_rules()
        solvers = solver_candidates(question.facts) | dict(self._more)
        solvers.setdefault(str(chosen), chosen.solver)
        programs: dict[str, Callable[[], Compiled]] = {
            name: functools.partial(self._compiled, Trial(question.key, solver))
            for name, solver in solvers.items()
        }
        for name, other in (others or {}).items():
            programs[name] = functools.partial(other.compiled, Trial())
        with _told(self._name, self._progress) as tell:
            key, limit = question.key, self._memory_limit
            return decide(programs, solvers, LAX, str(chosen), key, self._budget_s, tell, limit)

    def _compiled(self, trial: Trial) -> Compiled:
        program = self._program.compiled(trial)
        if trial.key not in trial.asked:
            raise ValueError("fun: it does not run the same scans each time that it is traced")
        return program


def _check_wrt(wrt: Any) -> None:
    names = () if isinstance(wrt, str) or not isinstance(wrt, Collection) else tuple(wrt)
    if not names or any(name not in GROUPS for name in names) or len(set(names)) < len(names):
        raise ValueError(f"wrt: got {wrt!r}; some of {GROUPS}, each once, are wanted in a tuple")


def _check_options(name: str, budget_s: Any, progress: Any) -> None:
    check_number("budget_s", budget_s)
    check_bool("progress", progress)
    if is_jit_disabled():
        raise ValueError(
            f"{name}: jax.disable_jit is on, under which all scans are jax.lax.scan's own, whose "
            "steps Python runs: there is nothing to race"
        )


def _opened(step: Callable, init: PyTree, xs: PyTree) -> tuple[PyTree, Callable]:
    """The arrays that a step closes over, and the step as a function of them."""
    cell, params = as_cell(step)
    if cell is not None:
        return params, lambda params: functools.partial(cell, params)
    x = jax.tree.map(lambda a: a[0], xs)
    closed, shape = jax.make_jaxpr(step, return_shape=True)(init, x)
    tree = jax.tree.structure(shape)

    def step_of(consts):
        run = jaxpr_as_fun(ClosedJaxpr(closed.jaxpr, consts))
        return lambda c, x: jax.tree.unflatten(tree, run(*jax.tree.leaves((c, x))))

    return list(closed.consts), step_of


@contextlib.contextmanager
def _told(name: str, progress: bool) -> Iterator[Callable[[str], None]]:
    """What shows progress: one line, written over where stderr is a terminal."""
    if not progress:
        yield lambda text: None
        return
    ends = "" if sys.stderr.isatty() else "\n"
    last = ""

    def tell(text: str) -> None:
        nonlocal last
        if text != last:
            print(f"\r{name}: {text:<60}", end=ends, file=sys.stderr, flush=True)
        last = text

    yield tell
    print(file=sys.stderr)
