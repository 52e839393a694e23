"""Base of the iterative solvers, and the loop of those that repeat one step."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import ClassVar

import jax.numpy as jnp
from jax import lax

from parscan_bp.report import Rounds
from parscan_bp.solvers.base import Solver
from parscan_bp.solvers.collect import collect_in_chunks
from parscan_bp.solvers.contraction import contraction_of
from parscan_bp.solvers.fixed_point import SystemAsFixedPoint, of_ragged, of_system
from parscan_bp.types import PyTree


class IterativeSolver(Solver):
    """Base of the solvers that know the maps by their products with vectors, many times.

    A new one defines `iterate` and `complexity`. All steps are linearised at once and kept, as
    `jax.lax.scan` keeps its residuals. A batch is one system: what stops depends on all of its
    rows. Under `jax.vmap` every entry is a system of its own, and one that has ended is left as it
    is, to the last bit, while others go on. Derivatives are solutions of the exact system and its
    transpose by the same solver: a loop that stopped early is never differentiated.
    """

    ragged: ClassVar[bool] = True
    needs: ClassVar = "products"
    rounds_vary: ClassVar[bool] = True

    @abc.abstractmethod
    def iterate(self, problem: SystemAsFixedPoint, *, record: bool) -> tuple[PyTree, Rounds]:
        """The solution of x = N x + b, and how it was found.

        Args:
          problem: the equation.
          record: whether residuals are wanted, which a fixed number of rounds does not need.
        """

    def run(self, system, state):
        return self._run(system, state, record=False)[0]

    def run_observed(self, system, state):
        return self._run(system, state, record=True)

    def _run(self, system, state, *, record):
        problem, read = of_system(system, state)
        x, rounds = self._observed(problem, record=record)
        shown, last = read(x)
        return (last, *collect_in_chunks(system, shown, None, last)), rounds

    def run_ragged(self, system):
        return self._run_ragged(system, record=False)[0]

    def run_ragged_observed(self, system):
        return self._run_ragged(system, record=True)

    def _run_ragged(self, system, *, record):
        if not system.length:
            return list(system.g), Rounds.of(0)
        x, rounds = self._observed(of_ragged(system), record=record)
        return [*x, system.g[-1]], rounds

    def _observed(self, problem, *, record):
        x, rounds = self.iterate(problem, record=record)
        if record:
            contraction = contraction_of(problem.operators)
            rounds = dataclasses.replace(rounds, contraction=contraction)
        return x, rounds


def repeat(
    problem: SystemAsFixedPoint,
    step: Callable[[PyTree, PyTree], PyTree],
    most: int,
    tol: float | None,
    *,
    record: bool,
) -> tuple[PyTree, Rounds]:
    """x <- step(x, image(x)) from x = 0.

    What is returned is the x whose residual was found small, not the one after it: where maps are
    not normal, another step may have a larger one.

    Args:
      problem: the equation.
      step: the new x.
      most: steps at most.
      tol: the `SystemAsFixedPoint.residual` to stop at; ``None`` takes all steps.
      record: whether residuals are wanted even so.
    """
    if tol is None and not record:
        x = lax.fori_loop(0, most, lambda _, x: step(x, problem.image(x)), problem.zero)
        return x, Rounds.of(most)
    image = problem.image(problem.zero)
    residual = problem.residual(problem.zero, image)
    history = jnp.full_like(residual, jnp.nan, shape=(most + 1,)) if record else None

    def goes_on(carry):
        k, _, _, residual, _ = carry
        # A residual that is NaN is not small.
        return (k < most) if tol is None else (k < most) & ~(residual <= tol)

    def advance(carry):
        k, x, image, residual, history = carry
        if history is not None:
            history = history.at[k].set(residual)
        x = step(x, image)
        image = problem.image(x)
        return k + 1, x, image, problem.residual(x, image), history

    start = (jnp.zeros((), jnp.int32), problem.zero, image, residual, history)
    k, x, _, residual, history = lax.while_loop(goes_on, advance, start)
    if history is not None:
        history = history.at[k].set(residual)
    converged = None if tol is None else residual <= tol
    return x, Rounds(k, converged=converged, history=history)
