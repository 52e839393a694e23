"""Newton's method for a whole trajectory: each pass is one bi-diagonal system."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

import jax
import jax.numpy as jnp

from parscan_bp.arguments import described, set_ints, set_numbers
from parscan_bp.forward.base import Forward, Trajectory
from parscan_bp.forward.corrections import check_linear, corrections, has_complex, linear_model
from parscan_bp.forward.passes import iterate, largest_finite
from parscan_bp.forward.vectors import FlatRecurrence, Vectors, guessed
from parscan_bp.linearise.base import Linearisation, Steps
from parscan_bp.linearise.columns import ByColumns
from parscan_bp.linearise.diagonal import DiagonalPart
from parscan_bp.solvers import Associative, Solver
from parscan_bp.solvers.base import check_solver
from parscan_bp.structure import find_structure
from parscan_bp.types import Array


@dataclasses.dataclass(frozen=True, repr=False)
class Newton(Forward):
    """All steps are linearised at once, and corrected together, until residuals are small.

    Around states x_t with residuals r_t = f(x_{t-1}, u_t) - x_t, a pass solves

        d_t = M_t d_{t-1} + r_t,    x_t <- x_t + d_t,

    a lower block bi-diagonal system. M_t = J_t is Newton's method (DEER): quadratic near the
    solution, one pass for a linear step. M_t = diag J_t costs no products of matrices (quasi-DEER).
    M_t = (1 - k) J_t is damped (scale-ELK): between Newton's method, k = 0, and a fixed point
    iteration, k = 1, which cannot overflow and is slow.

    Whatever M_t is, x_1..x_i are exact after i passes. A pass has a trust region along time: it is
    believed up to the first state whose residual is not finite, or larger than any before the pass;
    what follows takes f of the states before it. It ends as not converged where that brings nothing
    more, or too little for the passes that are left, as in chaos, or where an exact state is not
    finite.

    Args:
      jacobian: "dense", the whole Jacobian in the structure that the step has (rows of a batch are
        independent matrices, an elementwise step is a diagonal); or "diagonal", leaf by leaf.
      damping: k, a number in [0, 1]; or "residual", k = r / (1 + r) with the largest residual r of
        each row; ``None`` is 0.
      guess: x_1..x_n to begin with, a pytree like the carry with leading axis n; ``None`` is x_0 at
        every step.
      solver: what solves the system; ``None`` is `Associative`. One that needs products alone, as
        `Sweep` does, is given no formed Jacobian, unless there is damping or a diagonal.
      max_passes: after so many it ends as not converged.

    Raises:
      TypeError, ValueError: for options of another kind; when used, for a guess that is no
        trajectory of the carry, or Jacobians beyond the solver's memory limit.
      NotImplementedError: when used, for a step that the linear model does not hold, naming the
        primitive.

    Source: Lim, Zhu, Selfridge, Kasim, "Parallelizing non-linear sequential models over the
    sequence length", ICLR 2024 (DEER); Gonzalez, Warrington, Smith, Linderman, "Towards scalable
    and stable parallelization of nonlinear RNNs", NeurIPS 2024 (quasi-DEER, ELK, proposition 1);
    Naumov 2017, section 3.

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.forward import Newton, Recurrence
      >>> step = lambda c, u: jnp.tanh(c + u)
      >>> waves = Recurrence(step, jnp.zeros(2), jnp.sin(jnp.arange(100.0).reshape(50, 2)), 50)
      >>> made = Newton().evaluate(waves, 1e-6)
      >>> int(made.iterations) < 10, bool(made.converged)
      (True, True)
    """

    jacobian: Literal["dense", "diagonal"] = "dense"
    _: dataclasses.KW_ONLY
    damping: float | Literal["residual"] | None = None
    guess: Any = dataclasses.field(default=None, repr=False)
    solver: Solver | None = None
    max_passes: int = 100

    def __post_init__(self):
        super().__post_init__()
        if self.jacobian not in ("dense", "diagonal"):
            raise ValueError(f"jacobian: got {self.jacobian!r}; 'dense' or 'diagonal' is wanted")
        self._check_damping()
        check_solver(self.solver, "uniform")
        if self.solver is not None:
            self.solver.check_nothing_kept()
        set_ints(self, max_passes=1)

    def _check_damping(self):
        if self.damping is None or self.damping == "residual":
            return
        if isinstance(self.damping, str):
            raise ValueError(f"damping: got {self.damping!r}; 'residual' or a number is wanted")
        set_numbers(self, damping=0)
        if self.damping > 1:
            raise ValueError(f"damping: got {described(self.damping)}; at most 1 is wanted")

    def evaluate(self, recurrence, tolerance):
        flat = FlatRecurrence.of(recurrence)
        check_linear(flat.body, "Newton")
        solver = Associative() if self.solver is None else self.solver
        models = self._models(flat, solver)

        def correct(states, image):
            residuals = [f - x for f, x in zip(image, states, strict=True)]
            factor = self._factor(residuals)
            entering, leaves = flat.entering(states), flat.leaves(residuals)
            steps = Steps(flat.consts, entering, flat.inputs, flat.leaves(image))
            moves = list(leaves)
            for linear in models:
                own = linear.body.float_carry
                found = corrections(linear, solver, steps, [leaves[k] for k in own], factor)
                for k, d in zip(own, found, strict=True):
                    moves[k] = d
            return flat.vectors(moves)

        start = flat.vectors_of(guessed(self.guess, recurrence))
        states, count, converged = iterate(flat.image, correct, start, tolerance, self.max_passes)
        tree = jax.tree.structure(recurrence.init)
        return Trajectory(jax.tree.unflatten(tree, flat.leaves(states)), count, converged)

    def expected(self, length, exponent, tolerance):
        """Of the whole Jacobian without damping: log2(G log2(1 / tolerance)).

        From errors of about 1 / G on the number of right digits doubles with each pass, G being
        what the recurrence makes of a residual, 1 / (1 - e^exponent) for one that forgets.
        """
        if exponent >= 0 or self.jacobian != "dense" or self.damping is not None:
            return None
        passes = math.log2(-math.log2(tolerance) / -math.expm1(exponent))
        most = min(length, max(1, math.ceil(passes)))
        return most if most <= self.max_passes else None

    def _models(self, flat: FlatRecurrence, solver: Solver) -> list[Linearisation]:
        """How the Jacobians are obtained: of the carry as one, or the diagonal of each leaf."""
        if self.jacobian == "dense":
            return [linear_model(flat.body, solver, formed=self.damping is not None)]
        return [_diagonal_of(flat, k) for k in flat.body.float_carry]

    def _factor(self, residuals: Vectors) -> Array | None:
        """1 - k, for each row: (*batch)."""
        if self.damping is None:
            return None
        if self.damping != "residual":
            return jnp.asarray(1 - self.damping, residuals[0].dtype)
        return 1 / (1 + largest_finite(residuals)[..., 0])


def _diagonal_of(flat: FlatRecurrence, leaf: int) -> Linearisation:
    """The diagonal of one leaf's Jacobian, in one tangent where there is nothing beside it."""
    body = flat.body
    own = find_structure(body.jaxpr, body.num_consts, body.num_carry, leaves=[leaf])
    layout = flat.layouts[leaf]
    if own.diagonal and not has_complex(layout):
        return ByColumns(body.restricted((leaf,)), layout, diagonal=True)
    return DiagonalPart(body.restricted((leaf,)), layout)
