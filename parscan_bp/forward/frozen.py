"""The triangular system of forward propagation, its activations frozen at the pass before."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from parscan_bp.arguments import set_ints
from parscan_bp.forward.activation import Activation
from parscan_bp.forward.base import Forward, Trajectory
from parscan_bp.forward.corrections import check_linear, corrections, linear_model
from parscan_bp.forward.passes import iterate
from parscan_bp.forward.vectors import FlatRecurrence, guessed, traced
from parscan_bp.linearise.base import Steps
from parscan_bp.solvers import Associative, Solver
from parscan_bp.solvers.base import check_solver
from parscan_bp.trees import first_of
from parscan_bp.types import Array


@dataclasses.dataclass(frozen=True, repr=False)
class FrozenActivations(Forward):
    """Steps x_t = f(W x_{t-1} + b_t) with f taken to be a factor that is known from before.

    Of the pre-activations y_t of the last pass, or of the guess, f is the diagonal matrix

        D_t = diag((f(y_t) - f(0)) / y_t),    x_t = D_t (W x_{t-1} + b_t) + f(0),

    one lower block bi-diagonal system for all x_t. It is Newton's method with a secant of f,
    through 0, in the place of its tangent; f(0) = 0, as of tanh and relu, gives eq. 13. Where |y|
    is below the root of the rounding unit the quotient is its limit f'(0), as JAX has it. The
    trajectory of a former call, with nearly the same parameters, is a good guess: then y hardly
    moves. What `Newton` says of exact states and of the trust region holds here, too.

    Args:
      guess: x_1..x_n to begin with, a pytree like the carry with leading axis n; ``None`` is x_0 at
        every step.
      solver: what solves the system; ``None`` is `Associative`.
      max_passes: after so many it ends as not converged.

    Raises:
      TypeError, ValueError: as `Newton`.
      NotImplementedError: when used, if the step is no elementwise function of an affine map of the
        carry, as that of a GRU, naming what stands in the way.

    Source: Naumov, "Parallel complexity of forward and backward propagation", 2017, sections 2.1
    and 3, eq. 13, 18 and 20. There f(0) = 0, or y = 0 breaks it down.

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.forward import FrozenActivations, Recurrence
      >>> step = lambda c, u: jnp.tanh(c + u)
      >>> waves = Recurrence(step, jnp.zeros(2), jnp.sin(jnp.arange(100.0).reshape(50, 2)), 50)
      >>> made = FrozenActivations().evaluate(waves, 1e-6)
      >>> again = FrozenActivations(made.states).evaluate(waves, 1e-6)
      >>> bool(made.converged), int(again.iterations)
      (True, 0)
    """

    guess: Any = dataclasses.field(default=None, repr=False)
    _: dataclasses.KW_ONLY
    solver: Solver | None = None
    max_passes: int = 100

    def __post_init__(self):
        super().__post_init__()
        check_solver(self.solver, "uniform")
        if self.solver is not None:
            self.solver.check_nothing_kept()
        set_ints(self, max_passes=1)

    def evaluate(self, recurrence, tolerance):
        flat = FlatRecurrence.of(recurrence)
        activation = Activation.of(flat.body)
        solver = Associative() if self.solver is None else self.solver
        secants = _secants(flat, activation)

        def affine_step(carry, inputs):
            x, slopes = inputs
            y = activation.affine([*flat.consts, *carry, *x])
            return [slope * v for slope, v in zip(slopes, y, strict=True)]

        start = flat.vectors_of(guessed(self.guess, recurrence))
        slopes = jax.eval_shape(secants, flat.entering(start), list(flat.inputs))
        body, consts = traced(affine_step, flat.init, first_of((list(flat.inputs), slopes)))
        check_linear(body, "FrozenActivations")
        linear = linear_model(body, solver)

        def correct(states, image):
            entering, inputs = flat.entering(states), list(flat.inputs)
            slopes = secants(entering, inputs)
            steps = Steps(consts, entering, [*inputs, *slopes], flat.leaves(image))
            residuals = [f - x for f, x in zip(image, states, strict=True)]
            return flat.vectors(corrections(linear, solver, steps, flat.leaves(residuals)))

        states, count, converged = iterate(flat.image, correct, start, tolerance, self.max_passes)
        tree = jax.tree.structure(recurrence.init)
        return Trajectory(jax.tree.unflatten(tree, flat.leaves(states)), count, converged)


def _secants(flat: FlatRecurrence, activation: Activation):
    """The diagonals of D_t for all t, from the carries that enter the steps and their inputs."""

    def one(carry: Sequence[Array], x: Sequence[Array]) -> list[Array]:
        arguments = [*flat.consts, *carry, *x]
        y = activation.affine(arguments)
        f = lambda y: activation.elementwise(y, arguments)  # noqa: E731
        zero, ones = [jnp.zeros_like(v) for v in y], [jnp.ones_like(v) for v in y]
        at_zero, limit = jax.jvp(f, (zero,), (ones,))

        def secant(y, value, at_zero, limit):
            small = jnp.abs(y) <= jnp.sqrt(jnp.finfo(y.dtype).eps)
            return jnp.where(small, limit, (value - at_zero) / jnp.where(small, 1, y))

        return [secant(*parts) for parts in zip(y, f(y), at_zero, limit, strict=True)]

    return jax.vmap(one)
