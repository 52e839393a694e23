"""Jacobi's iteration: all steps at once, again and again."""

from __future__ import annotations

import dataclasses

from parscan_bp.arguments import check_number, set_ints
from parscan_bp.solvers.base import Complexity
from parscan_bp.solvers.iterative import IterativeSolver, repeat


@dataclasses.dataclass(frozen=True, repr=False)
class Jacobi(IterativeSolver):
    """x_{i+1} = N x_i + b from x_0 = b, with products alone.

    The diagonal blocks of our systems are the identity, so that Jacobi's step is one product of
    every map with the vector that enters it, all side by side, as in one wave. A vector moves one
    step further in each sweep: after n sweeps the solution is that of `Sweep`, and after k sweeps a
    cotangent has seen the next k steps. Where the maps contract, far fewer sweeps than n have small
    residuals: if the largest sum of absolute values of a row, `Report.contraction`, is q < 1, the
    system is diagonally dominant and the error shrinks by q in every sweep.

    The paper writes eq. (37) with E^-1 C, where C has the transposed weights and E^-1 the slopes of
    the activations. With lambda = E v the slopes come first, A = W^T E^-1, and the diagonal is the
    identity; both have the same sweeps up to that scaling.

    Steps k, work k n vector products for k sweeps, memory all linearised steps and three vectors.

    Args:
      sweeps: sweeps at most; ``None`` is n, after which the solution is exact.
      tol: the relative residual to stop at: the largest |x_{i+1} - x_i| / |x_{i+1}| over the
        vectors of all steps, in the maximum norm. It takes one product more. ``None`` takes all
        sweeps, 0 stops when nothing changes.

    Raises:
      TypeError, ValueError: if ``sweeps`` is not an int of at least 1, or ``tol`` no number of at
        least 0.

    Source: M. Naumov, 2017, section 3.2, equations (36) and (37).

    Example:
      >>> import jax.numpy as jnp, parscan_bp as pb
      >>> from parscan_bp.operators import Diagonal
      >>> system = pb.Uniform(Diagonal(jnp.full((50, 1), 0.1)), jnp.ones((51, 1)))
      >>> solution, report = pb.solve(system, pb.Jacobi(tol=1e-6), report=True)
      >>> round(float(solution[0, 0]), 5), int(report.iterations)
      (1.11111, 6)
    """

    sweeps: int | None = None
    _: dataclasses.KW_ONLY
    tol: float | None = None

    def __post_init__(self):
        set_ints(self, ("sweeps",), sweeps=1)
        if self.tol is not None:
            check_number("tol", self.tol)

    def iterate(self, problem, *, record):
        return repeat(problem, _image, self.most(problem.length), self.tol, record=record)

    def most(self, n: int) -> int:
        """Sweeps at most, for n steps."""
        return n if self.sweeps is None else min(self.sweeps, n)

    def complexity(self, n):
        """Of the most sweeps that it takes, and the product that tells the last residual."""
        products = self.most(n) + (self.tol is not None)
        return Complexity(
            steps=products, matrix_products=0, vector_products=products * n, operators=n
        )


def _image(x, image):
    return image
