"""What a solver returns is checked before it is used: shapes that differ would be broadcast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from parscan_bp.arguments import described
from parscan_bp.report import Rounds
from parscan_bp.solvers.base import Solver
from parscan_bp.system import Ragged, System
from parscan_bp.trees import add
from parscan_bp.types import Array, PyTree

Solved = tuple[PyTree, PyTree, PyTree]


def solved(solver: Solver, system: System, state: PyTree) -> Solved:
    """`Solver.run`, whose results are checked.

    Raises:
      TypeError, ValueError: if it returns something else than ``(state, summed, stacked)``, a state
        of other shapes than it was given, or not a contribution of every step.
    """
    return _checked(solver, "run", solver.run(system, state), state, system.length)


def solved_observed(solver: Solver, system: System, state: PyTree) -> tuple[Solved, Rounds]:
    """`Solver.run_observed`, whose results are checked alike."""
    made, rounds = solver.run_observed(system, state)
    return _checked(solver, "run_observed", made, state, system.length), rounds


def solved_ragged(solver: Solver, system: Ragged) -> list[Any]:
    """`Solver.run_ragged`, whose results are checked.

    Raises:
      TypeError, ValueError: if it returns no list of every lambda_t that is wanted, or one of
        another size.
    """
    return _checked_ragged(solver, "run_ragged", solver.run_ragged(system), system)


def solved_ragged_observed(solver: Solver, system: Ragged) -> tuple[list[Any], Rounds]:
    """`Solver.run_ragged_observed`, whose results are checked alike."""
    made, rounds = solver.run_ragged_observed(system)
    return _checked_ragged(solver, "run_ragged_observed", made, system), rounds


def checked_sum(solver: Solver, to: Sequence[Array], contributions: Sequence[Array]) -> list[Array]:
    """The sum of both, which have the same shapes if the solver summed or stacked as it should.

    Raises:
      ValueError: if they have not.
    """
    if _shapes(to) != _shapes(contributions):
        raise ValueError(
            f"{type(solver).__name__}.run returned contributions of shapes "
            f"{_shapes(contributions)}; {_shapes(to)} are wanted"
        )
    return add(to, contributions)


def _checked(solver: Solver, method: str, made: Any, state: PyTree, length: int) -> Solved:
    name = f"{type(solver).__name__}.{method}"
    if not (isinstance(made, tuple) and len(made) == 3):
        wanted = "(state, summed, stacked), see `Solver.run`, is wanted"
        raise TypeError(f"{name} returned {described(made)}; {wanted}")
    last, _, stacked = made
    if _shapes(last) != _shapes(state):
        raise ValueError(
            f"{name} returned a state of shapes {_shapes(last)}; {_shapes(state)} are wanted, "
            "those of the state it was given"
        )
    wrong = [
        jnp.shape(leaf) for leaf in jax.tree.leaves(stacked) if jnp.shape(leaf)[:1] != (length,)
    ]
    if wrong:
        raise ValueError(
            f"{name} returned stacked contributions of shape {wrong[0]}; a leading axis of "
            f"{length}, the steps, is wanted"
        )
    return made


def _checked_ragged(solver: Solver, method: str, made: Any, system: Ragged) -> list[Any]:
    name = f"{type(solver).__name__}.{method}"
    last: Any = system.g[-1]
    sizes = [*(a.shape[0] for a in system.operators), last.shape[-1]]
    if not isinstance(made, list | tuple) or len(made) != len(sizes):
        raise TypeError(f"{name} returned {described(made)}; a list of {len(sizes)} is wanted")
    for t in range(len(sizes)) if system.wanted is None else system.wanted:
        got = None if made[t] is None else jnp.shape(made[t])
        if not got or got[-1] != sizes[t]:
            raise ValueError(f"{name} returned lambda[{t}] of {got}; (..., {sizes[t]}) is wanted")
    return list(made)


def _shapes(tree: PyTree) -> PyTree:
    return jax.tree.map(jnp.shape, tree)
