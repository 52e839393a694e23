"""Richardson's iteration: a step along the residual."""

from __future__ import annotations

import dataclasses
import math

import jax

from parscan_bp.arguments import check_number, set_ints, set_numbers
from parscan_bp.solvers.base import Complexity
from parscan_bp.solvers.iterative import IterativeSolver, repeat


@dataclasses.dataclass(frozen=True, repr=False)
class Richardson(IterativeSolver):
    """x_{i+1} = x_i + omega (N x_i + b - x_i) from x_0 = b, with products alone.

    Our systems have unit diagonal blocks, so that with omega = 1 this is `Jacobi` to the last bit.
    With another omega it is never exact: N is nilpotent and (1 - omega) I + omega N is not, so that
    the error goes to zero for 0 < omega < 2 in the end, like |1 - omega|^i; but only after about
    n / omega sweeps for omega < 1, and for omega > 1 it may grow by (2 omega - 1)^n first.

    It is there for the paper's scaling, which keeps the diagonal E of the slopes apart from the
    weights: E_t v_t - W^T v_{t+1} = c_t. There Richardson's step is v + omega (c - R v), which in
    lambda = E v is this one with omega E_t in the place of omega; it converges only where every
    |1 - omega / f'| < 1, and not at all where a slope f' is zero, as of a ReLU. Scaled by E^-1, as
    equations (38) and (39) do for BiCGStab, it is the iteration here.

    Steps k, work k n vector products for k sweeps, memory all linearised steps and three vectors.

    Args:
      omega: the step, between 0 and 2.
      sweeps: sweeps at most; ``None`` is n for omega = 1, and else (2n + 64) / omega.
      tol: the relative residual to stop at, see `Jacobi`; ``None`` takes all sweeps.

    Raises:
      TypeError, ValueError: if ``omega`` is no number between 0 and 2, ``sweeps`` no int of at
        least 1, or ``tol`` no number of at least 0.

    Source: M. Naumov, 2017, section 3.2.

    Example:
      >>> import jax.numpy as jnp, parscan_bp as pb
      >>> from parscan_bp.operators import Diagonal
      >>> system = pb.Uniform(Diagonal(jnp.full((50, 1), 0.1)), jnp.ones((51, 1)))
      >>> solution = pb.solve(system, pb.Richardson(0.9, tol=1e-6))
      >>> round(float(solution[0, 0]), 5)
      1.11111
    """

    omega: float = 1.0
    _: dataclasses.KW_ONLY
    sweeps: int | None = None
    tol: float | None = None

    def __post_init__(self):
        set_ints(self, ("sweeps",), sweeps=1)
        set_numbers(self, omega=0)
        if not 0 < self.omega < 2:
            raise ValueError(f"omega: got {self.omega}; a number between 0 and 2 is wanted")
        if self.tol is not None:
            check_number("tol", self.tol)

    def iterate(self, problem, *, record):
        omega = self.omega

        def step(x, image):
            if omega == 1:
                return image
            problem.check_floats(self)
            return jax.tree.map(lambda a, b: a + omega * (b - a), x, image)

        return repeat(problem, step, self.most(problem.length), self.tol, record=record)

    def most(self, n: int) -> int:
        """Sweeps at most, for n steps."""
        if self.sweeps is not None:
            return self.sweeps
        return n if self.omega == 1 else math.ceil((2 * n + 64) / self.omega)

    def complexity(self, n):
        """Of the most sweeps that it takes, and the product that tells the last residual."""
        products = self.most(n) + (self.tol is not None)
        return Complexity(
            steps=products, matrix_products=0, vector_products=products * n, operators=n
        )
