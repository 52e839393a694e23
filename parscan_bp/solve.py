"""`solve`: a bi-diagonal system whose operators are in memory."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Literal, overload

import jax
import jax.numpy as jnp
from jax import lax

from parscan_bp.arguments import check_concrete, described
from parscan_bp.jaxprs.differentiated import has_rules
from parscan_bp.operators import MatrixFree, Operator
from parscan_bp.primitives.linear_solve import LinearSolve
from parscan_bp.report import Report, Rounds, report_on
from parscan_bp.solvers import Solver, Sweep, check_solver
from parscan_bp.solvers.results import (
    solved,
    solved_observed,
    solved_ragged,
    solved_ragged_observed,
)
from parscan_bp.system import Block, Ragged, System, Uniform
from parscan_bp.trees import eval_shape, stretch
from parscan_bp.types import Array


@overload
def solve(
    system: Uniform | Ragged, solver: Solver | None = None, *, report: Literal[False] = False
) -> Any: ...


@overload
def solve(
    system: Uniform | Ragged, solver: Solver | None = None, *, report: Literal[True]
) -> tuple[Any, Report]: ...


def solve(
    system: Uniform | Ragged, solver: Solver | None = None, *, report: bool = False
) -> Array | list[Array] | tuple[Array | list[Array], Report]:
    """Solves ``lambda[n] = g[n]``, ``lambda[t] = g[t] + A[t] lambda[t + 1]``.

    Where a solver multiplies operators, or takes rounds that vary, derivatives are solutions of the
    same system and its transpose, by the same solver: its own program is never differentiated.

    Args:
      system: operators and right-hand side.
      solver: a solver; ``None`` is `Sweep`, which needs no products.
      report: whether a `Report` on the solution is returned beside it. It takes one more product
        of every operator with a vector, and one more solution where the solver iterates.

    Returns:
      lambda in the form of g: an array (n + 1, *batch, features) for a `Uniform` system, a
      list of n + 1 vectors for a `Ragged` one. With ``report=True`` the pair (lambda, `Report`).

    Raises:
      TypeError: if ``system`` is not a system, ``solver`` not a solver or ``report`` not a bool,
        or the report on a solution of integers.
      NotImplementedError: if the solver cannot take this structure.
      ValueError: if the solver would exceed its memory limit.

    Source: BPPSA (Wang, Bai, Pekhimenko, MLSys 2020), eq. 3 and section 3.1.

    Example:
      >>> import jax.numpy as jnp, parscan_bp as pb
      >>> from parscan_bp.operators import Dense
      >>> system = pb.Ragged([Dense(jnp.ones((3, 2)))], [jnp.zeros(3), jnp.ones(2)])
      >>> solution, report = pb.solve(system, pb.Blelloch(), report=True)
      >>> solution[0].tolist(), report.status == pb.Status.OK
      ([2.0, 2.0, 2.0], Array(True, dtype=bool))
    """
    if not isinstance(system, (Uniform, Ragged)):
        raise TypeError(f"system: got {described(system)}; Uniform or Ragged is wanted")
    if not isinstance(report, bool):
        raise TypeError(f"report: got {report!r}; a bool is wanted")
    check_solver(solver, "ragged" if isinstance(system, Ragged) else "uniform")
    solver = Sweep() if solver is None else solver
    solver.check_nothing_kept()
    for leaf in jax.tree.leaves((system.operators, system.g)):
        check_concrete("system", leaf)
    solution = _ragged(system, solver) if isinstance(system, Ragged) else _uniform(system, solver)
    if not report:
        return solution
    dtype = jnp.result_type(*jax.tree.leaves(solution))
    if not jnp.issubdtype(dtype, jnp.inexact):
        raise TypeError(f"report: got a solution of {dtype}; only floats have rounding errors")
    return solution, report_on(system, solution, rounds=_rounds(system, solver))


def _rounds(system: Uniform | Ragged, solver: Solver) -> Rounds | None:
    """What a solver tells that iterates, or leaves something out, from one more solution."""
    if system.length == 0 or (solver.exact and not solver.rounds_vary):
        return None
    if isinstance(system, Ragged):
        parts = lax.stop_gradient((list(system.operators), _of_one_kind(system)))
        return solved_ragged_observed(solver, Ragged(*parts))[1]
    operators, g = lax.stop_gradient((system.operators, _promoted(system)))
    return solved_observed(solver, Uniform(operators, g), jnp.zeros_like(g[0]))[1]


def solve_upper(
    solver: Solver,
    operators: Sequence[Operator],
    g: Sequence[Array | None],
    wanted: Sequence[int] | None = None,
) -> list[Any]:
    """lambda_k = g_k + A_{k+1} lambda_{k+1}: reverse-mode."""
    return solved_ragged(solver, Ragged(operators, g, wanted))


def solve_lower(
    solver: Solver,
    operators: Sequence[Operator],
    g: Sequence[Array | None],
    wanted: Sequence[int] | None = None,
) -> list[Any]:
    """d_k = g_k + J_k d_{k-1}: forward-mode, the same system counted from the other end."""
    if wanted is not None:
        wanted = [len(operators) - k for k in wanted]
    return solve_upper(solver, operators[::-1], g[::-1], wanted)[::-1]


def _uniform(system: Uniform, solver: Solver) -> Array:
    solver.check(type(system.operators))
    if system.length == 0:
        return jnp.asarray(system.g)
    g, rule = _promoted(system), _uniform_rule(solver)
    if solver.differentiable and not _has_rules(rule.matvec, system.operators, g):
        return _upper(solver, system.operators, g)
    return rule(system.operators, g)


def _has_rules(matvec, operators: Any, g: Any) -> bool:
    """Whether products are by functions with a `jax.custom_jvp`.

    Up to jax 0.10 a loop takes of such a rule what it is told of the first derivative only.
    """
    kinds = jax.tree.leaves(operators, is_leaf=lambda a: isinstance(a, MatrixFree))
    if not any(isinstance(a, MatrixFree) for a in kinds):
        return False
    return has_rules(jax.make_jaxpr(matvec)(operators, g).jaxpr)


def _promoted(system: Uniform) -> Array:
    """g in the dtype of the solution."""
    g = jnp.asarray(system.g)
    return g.astype(jnp.result_type(g.dtype, system.operators.dtype))


def _upper(solver: Solver, operators: Operator, g: Array) -> Array:
    state, _, shown = solved(solver, Uniform(operators, g), jnp.zeros_like(g[0]))
    return jnp.concatenate([(g[0] + state)[None], shown]).astype(g.dtype)


@functools.lru_cache(maxsize=128)
def _uniform_rule(solver: Solver) -> LinearSolve:
    """`_upper` with its derivatives."""

    def matvec(operators, u):
        pushed = operators.of_each(lambda a, v: a.matvec(v), u[1:])
        return u - jnp.concatenate([pushed, jnp.zeros_like(u[:1])])

    def backward(operators, ct):
        system = _Transposed(operators.transpose(), ct)
        state, _, shown = solved(solver, system, jnp.zeros_like(ct[0]))
        return jnp.concatenate([shown, (ct[-1] + state)[None]]).astype(ct.dtype)

    return LinearSolve(matvec, functools.partial(_upper, solver), backward, is_own=_is_asked)


def _is_asked() -> bool:
    """Rules make of the products of `MatrixFree` operators others: `LinearSolve` reads which."""
    return False


@dataclasses.dataclass(frozen=True)
class _Transposed(System):
    """u[0] = g[0], u[t + 1] = g[t + 1] + A[t] u[t]: the transpose of `Uniform` for its A[t]^T.

    Attributes:
      operators: stack of n operators A.
      g: right-hand side (n + 1, *batch, features).
    """

    operators: Operator
    g: Array

    @property
    def length(self):
        return self.g.shape[0] - 1

    @property
    def backward(self):
        return False

    @property
    def adjoint(self):
        return False

    def block(self, start, size):
        return Block(self.operators.slice(start, size), stretch(self.g, start, size))

    def collect(self, start, shown, state, aux=None):
        return None, shown


def _ragged(system: Ragged, solver: Solver) -> list[Any]:
    for a in system.operators:
        solver.check(type(a), ragged=True)
    system = dataclasses.replace(system, g=_of_one_kind(system))
    if solver.differentiable:
        return solved_ragged(solver, system)
    # Unknowns of a linear solve have the types of its right-hand side.
    like = eval_shape(functools.partial(solve_upper, solver), system.operators, system.g)
    g = [
        jnp.zeros_like(a) if b is None else jnp.broadcast_to(b.astype(a.dtype), a.shape)
        for a, b in zip(like, system.g, strict=True)
    ]
    return _ragged_rule(solver)(list(system.operators), g)


def _of_one_kind(system: Ragged) -> list[Array | None]:
    """g as arrays; integers among floats are floats."""
    g = [None if v is None else jnp.asarray(v) for v in system.g]
    kinds = [a.dtype for a in (*system.operators, *g) if a is not None]
    if not any(jnp.issubdtype(kind, jnp.inexact) for kind in kinds):
        return g
    return [
        v
        if v is None or jnp.issubdtype(v.dtype, jnp.inexact)
        else v.astype(jnp.result_type(*kinds))
        for v in g
    ]


@functools.lru_cache(maxsize=128)
def _ragged_rule(solver: Solver) -> LinearSolve:
    """`Solver.run_ragged` with its derivatives."""

    def matvec(operators, u):
        pushed = [
            a.matvec(v).astype(w.dtype) for a, v, w in zip(operators, u[1:], u[:-1], strict=True)
        ]
        return [*map(jnp.subtract, u[:-1], pushed), u[-1]]

    def forward(operators, g):
        return _as(g, solve_upper(solver, operators, g))

    def backward(operators, cts):
        return _as(cts, solve_lower(solver, [a.transpose() for a in operators], cts))

    return LinearSolve(matvec, forward, backward, is_own=_is_asked)


def _as(like: Sequence[Array], values: Sequence[Array]) -> list[Array]:
    return [v.astype(a.dtype) for v, a in zip(values, like, strict=True)]
