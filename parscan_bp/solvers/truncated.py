"""Truncated back-propagation, named for what it is."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from parscan_bp.arguments import check_bool, set_ints
from parscan_bp.report import Rounds
from parscan_bp.solvers.base import Complexity, Solver
from parscan_bp.solvers.collect import accumulators, collect_in_chunks
from parscan_bp.solvers.cut_off import bound_on_error
from parscan_bp.solvers.fixed_point import of_system
from parscan_bp.solvers.stretches import sweep_stretch
from parscan_bp.system import System
from parscan_bp.trees import add, eval_shape, write_stretch


@dataclasses.dataclass(frozen=True, repr=False)
class Truncated(Solver):
    """Gradients over so many steps and no further. It does not solve the system.

    As recurrent networks are trained: the carry that enters every ``window``-th step is
    `jax.lax.stop_gradient` of the one before, counted from the first step, whose own is not, so
    that A_t is zero there. A step that stands at the end of its window sees itself alone. Or
    ``sliding``: every step's parameters see exactly ``window`` steps, its own and those after it,

        lambda_t = g_t + A_{t+1} g_{t+1} + ... + A_{t+1} ... A_{t+k-1} g_{t+k-1},

    (the first carry sees k steps, its sum has one term more), the first k terms of Neumann's
    series, by k - 1 sweeps of `Jacobi`. Forward-mode is
    truncated alike. Values are exact. Derivatives of derivatives are those of the exact system with
    every solve on the way truncated, not those of a truncated gradient.

    With ``report=True``, `Report.cut_off` bounds what was cut off, and the residual is that of the
    system that was not solved: the status is ``INACCURATE`` as soon as it matters.

    Windows: steps n, work n vector products, memory one window. Sliding: steps k, work k n vector
    products, memory all linearised steps.

    Args:
      window: k, the number of steps.
      sliding: whether every step has a window of its own.

    Raises:
      TypeError, ValueError: if ``window`` is not an int of at least 1, or ``sliding`` no bool.

    Source: Williams and Peng, Neural Computation 2 (1990), truncated back-propagation through time;
    M. Naumov, 2017, section 3.2, for the sweeps.

    Example:
      >>> import jax, jax.numpy as jnp, parscan_bp as pb
      >>> step = lambda c, x: (0.5 * c + x, c)
      >>> loss = lambda xs, **how: pb.scan(step, 0.0, xs, solver=pb.Truncated(2, **how))[0]
      >>> jax.grad(loss)(jnp.zeros(5)).tolist()
      [0.0, 0.0, 0.0, 0.0, 1.0]
      >>> jax.grad(lambda xs: loss(xs, sliding=True))(jnp.zeros(5)).tolist()
      [0.0, 0.0, 0.0, 0.5, 1.0]
    """

    window: int
    _: dataclasses.KW_ONLY
    sliding: bool = False

    needs: ClassVar = "products"
    exact: ClassVar = False

    def __post_init__(self):
        set_ints(self, window=1)
        check_bool("sliding", self.sliding)

    def run(self, system, state):
        return self._slide(system, state) if self.sliding else self._cut(system, state)

    def run_observed(self, system, state):
        result, n = self.run(system, state), system.length
        block = system.block(0, n)
        size = block.operator.magnitude()
        if size is None:
            return result, Rounds(jnp.ones((), jnp.int32), cut_off=jnp.full((), jnp.nan))
        shown, lost = self._lost(system, state, block)
        size = size.broadcast(n)
        if system.backward:
            size, lost = jax.tree.map(lambda a: a[::-1], (size, lost))
        bound = bound_on_error(size, lost, self.window)
        cut_off = jnp.where(bound == 0, 0, bound / jnp.max(jnp.abs(shown), initial=0))
        return result, Rounds(jnp.ones((), jnp.int32), cut_off=cut_off)

    def _lost(self, system, state, block):
        """The shown vectors, and by how much the state that leaves each step is not handed on."""
        n = system.length
        if self.sliding:
            problem, read = of_system(system, state)
            x = self._swept(problem)
            return read(x)[0], jnp.abs(problem.image(x) - x)
        _, _, shown = self.run(_Shown(system), state)
        left = jnp.abs(add(block.operator.matvec(shown), block.leaving))
        time = jnp.arange(n) if system.adjoint == system.backward else jnp.arange(n)[::-1]
        # Of cotangents what leaves the first step of a window, of tangents what leaves the last.
        seam = time if system.adjoint else time + 1
        cut = (seam % min(self.window, n) == 0) & (seam > 0) & (seam < n)
        return shown, jnp.where(cut.reshape(n, *[1] * (left.ndim - 1)), left, 0)

    def _swept(self, problem):
        """The states after so many sweeps that a step sees its window."""
        sweeps = min(self.window - 1, problem.length)
        return lax.fori_loop(0, sweeps, lambda _, x: problem.image(x), problem.zero)

    def _slide(self, system, state):
        problem, read = of_system(system, state)
        x = self._swept(problem)
        shown, _ = read(x)
        # The state that leaves is that of the last step's own window.
        _, last = read(problem.image(x))
        return (last, *collect_in_chunks(system, shown, None, last))

    def _cut(self, system, state):
        n = system.length
        size = min(self.window, n)
        whole, rest = divmod(n, size)
        # Windows are counted from the first step in time, wherever that is.
        in_order = system.adjoint == system.backward
        first = 0 if in_order else rest
        zero = jax.tree.map(jnp.zeros_like, state)
        after, shown, aux = eval_shape(lambda s: sweep_stretch(system, s, 0, 1), state)
        sums = accumulators(system, shown, after, aux)

        def visit(carry, start, size, enters):
            _, summed, stacked = carry
            state, shown, aux = sweep_stretch(system, enters, start, size)
            more, part = system.collect(start, shown, state, aux)
            return state, add(summed, more), write_stretch(stacked, part, start)

        def windows(carry, fresh):
            """All whole windows in the order of traversal; ``fresh`` enters the first."""

            def step(k, carry):
                index = whole - 1 - k if system.backward else k
                enters = jax.tree.map(lambda a, b: jnp.where(k == 0, a, b), fresh, zero)
                return visit(carry, first + index * size, size, enters)

            return lax.fori_loop(0, whole, step, carry)

        carry = (zero, *sums)
        if not rest:
            return windows(carry, state)
        # The last in time is shorter; of cotangents it is the first that is traversed.
        short = whole * size if in_order else 0
        if system.adjoint:
            return windows(visit(carry, short, rest, state), zero)
        return visit(windows(carry, state), short, rest, zero)

    def complexity(self, n):
        if not self.sliding:
            return Complexity(
                steps=n, matrix_products=0, vector_products=n, operators=min(self.window, n)
            )
        sweeps = min(self.window, n + 1)
        return Complexity(steps=sweeps, matrix_products=0, vector_products=sweeps * n, operators=n)


@dataclasses.dataclass(frozen=True)
class _Shown(System):
    """A system of which nothing is collected but the shown vectors."""

    system: System

    @property
    def length(self):
        return self.system.length

    @property
    def backward(self):
        return self.system.backward

    @property
    def adjoint(self):
        return self.system.adjoint

    def block(self, start, size):
        return self.system.block(start, size)

    def collect(self, start, shown, state, aux=None):
        return None, shown
