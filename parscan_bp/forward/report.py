"""What is told of a forward pass that a method made: `Report.forward`."""

from __future__ import annotations

import dataclasses
from typing import final

import jax
import jax.numpy as jnp
from jax import lax

from parscan_bp.status import Status, as_told
from parscan_bp.types import Array, PyTree


@final
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ForwardReport:
    """How the values of a parallel forward pass were made. A pytree of arrays, an entry each.

    Errors are relative to 1 + the largest magnitude of a carry. What the method left undone is told
    apart from what rounding does to any evaluation, the sequential one included.

    Attributes:
      status: int32, a `Status`: OK if the values are certified, or the sequential pass's.
      iterations: int32, rounds or passes of the method.
      converged: bool, whether the method's own test was met.
      residual: the largest |x_t - f(x_{t-1})|.
      error: an estimate, or a bound, of |x_t - x*_t| from the residuals; infinite where the
        certificate refuses, and NaN where something was not finite.
      floor: what rounding may add.
      tolerance: what the sum of the two is compared with.
      fell_back: bool, whether the values are those of the sequential pass. What stands above is
        then of the trajectory that was dropped.
      states: the carry after every step, which may be the next call's guess.

    Example:
      >>> import jax.numpy as jnp, parscan_bp as pb
      >>> step = lambda h, x: (jnp.tanh(0.5 * h + x), h)
      >>> *_, report = pb.scan(step, 0.0, jnp.ones(99), forward="chunks", report=True)
      >>> report.forward.status == pb.Status.OK, report.forward.error <= report.forward.tolerance
      (Array(True, dtype=bool), Array(True, dtype=bool))
    """

    status: Array
    iterations: Array
    converged: Array
    residual: Array
    error: Array
    floor: Array
    tolerance: Array
    fell_back: Array
    states: PyTree

    def __str__(self) -> str:
        return as_told(self)


def forward_report(
    *, certified: Array, finite: Array, tolerance: float, states: PyTree, **told: Array
) -> ForwardReport:
    """The report, its status from what is known; its derivatives are zero.

    Args:
      certified: whether the trajectory is.
      finite: whether the values are.
      tolerance, states, **told: see `ForwardReport`.
    """
    good = certified | told["fell_back"]
    status = jnp.where(good, Status.OK, Status.UNCERTIFIED)
    status = jnp.where(finite, status, Status.NON_FINITE).astype(jnp.int32)
    limit = jnp.asarray(tolerance, told["error"].dtype)
    return lax.stop_gradient(ForwardReport(status=status, tolerance=limit, states=states, **told))
