"""How good a solution is: what `report=True` returns beside it.

Nothing can raise inside a compiled program, so a solver that fails says so in a value. The report
is made from the system and its solution alone, after the solve and whatever the solver, by one
product of each operator with a vector.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
from collections.abc import Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from parscan_bp.operators import Operator
from parscan_bp.operators.arithmetic import accumulation_dtype
from parscan_bp.system import Ragged, Uniform
from parscan_bp.types import Array


class Status(enum.IntEnum):
    """What `Report.status` says.

    Attributes:
      OK: the solution is finite, and that of the system up to rounding.
      NON_FINITE: it has an infinity or NaN, or the product that would check it has. Where the
        system itself has them, so has the solution of every solver.
      INACCURATE: it is finite, and the residual is larger than the bound.
    """

    OK = 0
    NON_FINITE = 1
    INACCURATE = 2


@final
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Report:
    """How good a solution is. A pytree of arrays without axes; under `jax.vmap`, one an entry.

    The residual is the componentwise backward error of the bi-diagonal system,

        max_t,i  |lambda_t - g_t - A_{t+1} lambda_{t+1}|_i
               / (|lambda_t| + |g_t| + |A_{t+1}| |lambda_{t+1}|)_i,

    the least relative change of numbers in A and g that makes the solution exact. Sequential
    substitution has a few roundings of its dtype. A tree, which multiplies operators first, has
    them where no component is grown first and annihilated later: of a product that is small beside
    its factors only the absolute error is small, and the vector that is pushed through it has a
    residual (and an error) of up to the quotient of the two. No exponent beside its entries repairs
    that, which is why it is measured. How far the solution is from the true one is the residual
    times the condition of the system, for every solver.

    Derivatives of a report are zero.

    Attributes:
      status: int32, a `Status`.
      residual: the residual above, at least float32; NaN where the status is `NON_FINITE`.
      iterations: int32, rounds that an iterative solver took; a direct one takes 1.
      bound: what the residual is compared with: a thousand roundings of the solution's dtype, and
        of short dtypes half the digits.
      fell_back: bool, whether another solver's result was taken; no solver of this version does so,
        and it is False.

    Source: Oettli and Prager, Numerische Mathematik 6 (1964), for the backward error.

    Example:
      >>> import jax.numpy as jnp, parscan_bp as pb
      >>> from parscan_bp.operators import Diagonal
      >>> system = pb.Uniform(Diagonal(jnp.full((3, 2), 0.5)), jnp.ones((4, 2)))
      >>> solution, report = pb.solve(system, pb.Blelloch(), report=True)
      >>> pb.Status(int(report.status)).name, float(report.residual)
      ('OK', 0.0)
    """

    status: Array
    residual: Array
    iterations: Array
    bound: Array
    fell_back: Array


def report_on(system: Uniform | Ragged, solution: Array | Sequence[Array | None]) -> Report:
    """The report on a solution that a direct solver made.

    Args:
      system: the system.
      solution: lambda in the form of the system's g; ``None`` where a solver made none, of which
        nothing is known.

    Returns:
      The report.

    Source: see `Report`.

    Example:
      >>> import jax.numpy as jnp, parscan_bp as pb
      >>> from parscan_bp.operators import Diagonal
      >>> system = pb.Uniform(Diagonal(jnp.ones((1, 1))), jnp.ones((2, 1)))
      >>> float(report_on(system, jnp.array([[2.5], [1.0]])).residual)
      0.1111111119389534
    """
    bound = error_bound(jnp.result_type(*jax.tree.leaves(solution)))
    errors = jnp.concatenate([jnp.ravel(e) for e in _errors(system, solution, bound)])
    residual = jnp.max(errors)
    accurate = jnp.where(residual <= bound, Status.OK, Status.INACCURATE)
    status = jnp.where(jnp.isfinite(residual), accurate, Status.NON_FINITE)
    return Report(
        status=status.astype(jnp.int32),
        residual=residual,
        iterations=jnp.ones((), jnp.int32),
        bound=jnp.asarray(bound, residual.dtype),
        fell_back=jnp.zeros((), bool),
    )


def error_bound(dtype: np.dtype) -> float:
    """The largest residual of a solution of this dtype that is called accurate.

    Example:
      >>> import jax.numpy as jnp
      >>> error_bound(jnp.float32) == 1000 * 2.0**-23, error_bound(jnp.float16) == 2.0**-5
      (True, True)
    """
    eps = float(jnp.finfo(dtype).eps)
    return min(1000 * eps, math.sqrt(eps))


def backward_error(
    operator: Operator | None, v: Array | None, out: Array, added: Array | None, *, bound: float
) -> Array:
    """max |out - added - A v| / (|out| + |added| + |A| |v|), over all entries and a whole stack.

    An entry whose denominator is zero has no error. What underflow may lose counts as no more than
    ``bound``. Of an operator whose magnitude is not known, the largest |A v| of a map stands for
    its |A| |v|, which it does not exceed: the error is not underrated.

    Args:
      operator: A; ``None`` is 0.
      v: vectors (..., cols).
      out: vectors (..., rows), what should be added + A v.
      added: the same; ``None`` is 0.
      bound: see `error_bound`.

    Returns:
      A number of at least float32, NaN if anything on the way is not finite. Its derivative is 0.

    Source: see `Report`.

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.operators import Diagonal
      >>> one, v = Diagonal(jnp.ones(2)), jnp.array([1.0, 1e30])
      >>> float(backward_error(one, v, jnp.array([3.0, 1e30]), None, bound=1e-4))
      0.5
    """
    operator, v, out, added = lax.stop_gradient((operator, v, out, added))
    own, wide = out.dtype, accumulation_dtype(out.dtype)
    parts = [part.astype(wide) for part in (out, added) if part is not None]
    error, size, terms = parts[0] - sum(parts[1:]), sum(map(jnp.abs, parts)), 2
    if operator is not None and v is not None:
        pushed, magnitude = _product(operator, v, wide)
        error, size, terms = error - pushed, size + magnitude, terms + operator.shape[1]
    lost = max(float(jnp.finfo(own).smallest_subnormal), float(jnp.finfo(wide).tiny))
    # Divided by an infinite size, every error would be none.
    size = jnp.where(jnp.isfinite(size), size + terms * lost / bound, jnp.nan)
    return jnp.max(jnp.abs(error) / size, initial=0)


def _product(operator: Operator, v: Array, wide: np.dtype) -> tuple[Array, Array]:
    """A v and |A| |v|."""
    magnitude = operator.magnitude()
    if magnitude is None:
        pushed = operator.matvec(v).astype(wide)
        return pushed, jnp.max(jnp.abs(pushed), axis=-1, keepdims=True)
    v = v.astype(wide)
    return operator.matvec(v), magnitude.matvec(jnp.abs(v))


def _errors(system: Uniform | Ragged, solution: Any, bound: float) -> list[Array]:
    """The errors of all rows, in arrays of any shape."""
    judge = functools.partial(backward_error, bound=bound)
    if isinstance(system, Ragged):
        rows = zip(
            [*system.operators, None], [*solution[1:], None], solution, system.g, strict=True
        )
        return [
            judge(operator, v, out, added)
            for operator, v, out, added in rows
            if out is not None and (operator is None or v is not None)
        ]
    leaves, rebuild = system.operators.unstack()
    steps = jax.vmap(lambda leaves, *row: judge(rebuild(leaves), *row))
    first = steps(leaves, solution[1:], solution[:-1], system.g[:-1])
    return [first, judge(None, None, solution[-1], system.g[-1])]
