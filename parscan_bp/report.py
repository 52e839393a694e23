"""How good a solution is: what `report=True` returns beside it.

Nothing can raise inside a compiled program, so a solver that fails says so in a value. The report
is made from the system and its solution alone, after the solve and whatever the solver, by one
product of each operator with a vector. Of a scan or a chain, whose values no solver makes, the
solution is that of a system by which their derivatives are made, see `cotangents`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from parscan_bp.jaxprs.hijax import is_hi_type
from parscan_bp.operators import Operator
from parscan_bp.operators.arithmetic import accumulation_dtype
from parscan_bp.status import Status as Status
from parscan_bp.status import as_told
from parscan_bp.system import Ragged, Uniform
from parscan_bp.trees import largest
from parscan_bp.types import Array, PyTree


@final
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Rounds:
    """What a solver tells of its rounds. A pytree of arrays; ``None`` where it tells nothing.

    Attributes:
      count: int32, how many there were.
      converged: bool, whether it came to its tolerance; ``None`` of a solver without one.
      broke_down: bool, whether it could not go on.
      history: the residual after 0, 1, ... rounds in the norm that its tolerance is about, and NaN
        after the last.
      fell_back: bool, whether it went another way in the end; ``None`` of one that never does.
      contraction, cut_off: see `Report`.
    """

    count: Array
    converged: Array | None = None
    broke_down: Array | None = None
    fell_back: Array | None = None
    history: Array | None = None
    contraction: Array | None = None
    cut_off: Array | None = None

    @classmethod
    def of(cls, count: int | Array) -> Rounds:
        """So many, and nothing else is known."""
        return cls(jnp.asarray(count, jnp.int32))


@final
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Report:
    """How good a solution is. A pytree of arrays without axes; under `jax.vmap`, one an entry.

    The residual is the componentwise backward error of the bi-diagonal system,

        max_t,i  |lambda_t - g_t - A_{t+1} lambda_{t+1}|_i
               / (|lambda_t| + |g_t| + |A_{t+1}| |lambda_{t+1}|)_i,

    the least relative change of numbers in A and g that makes the solution exact; of an operator
    that keeps factors or terms, of the numbers in these, |A| being the product or sum of their
    absolute values. Sequential
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
      bound: what the residual is compared with: a thousand roundings of the solution's dtype, or
        of a shorter one that a scan's step computes in, and of short dtypes half the digits.
      fell_back: bool, whether something else was taken than the solver, or the method of the
        forward pass, that was named, as its caller allowed.
      history: of a solver that iterates, the residual before the first round and after each, in
        the norm that its tolerance is about, and NaN after the last; ``None`` of others. (So such a
        report is none for `jax.debug_nans`.)
      contraction: of a solver that iterates, the largest sum of absolute values in a row of the
        maps, or a bound of it where an operator keeps factors, made of those of the factors;
        ``None`` of others and of no steps, NaN where it is not known. Below 1 the system is
        diagonally dominant, and every sweep of `Jacobi` shrinks the error by so much at least.
      cut_off: of a solver that leaves something out, as `Truncated`, a bound on the largest error
        of lambda over the largest entry of the lambda that it made; ``None`` of others, NaN where
        it is not known.
      forward: of a scan whose values a method made, the `ForwardReport` on it; else ``None``.

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
    history: Array | None = None
    contraction: Array | None = None
    cut_off: Array | None = None
    forward: PyTree = None

    def __str__(self) -> str:
        return as_told(self)


def report_on(
    system: Uniform | Ragged,
    solution: Array | Sequence[Array | None],
    values: PyTree = (),
    *,
    rounds: Rounds | None = None,
) -> Report:
    """The report on a solution.

    Args:
      system: the system.
      solution: lambda in the form of the system's g; ``None`` where a solver made none, of which
        nothing is known.
      values: what else is to be finite.
      rounds: what the solver tells of its rounds; ``None`` of a direct one.

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
    bound = bound_of(solution)
    return made_report(_errors(system, solution, bound), bound, values, rounds=rounds)


def made_report(
    errors: Sequence[Array],
    bound: float,
    values: PyTree = (),
    *,
    rounds: Rounds | None = None,
    fell_back: bool = False,
) -> Report:
    """The report of an error for every row of a system; without a system, on values alone.

    Args:
      errors: arrays of any shape.
      bound, fell_back: see `Report`.
      rounds: what the solver tells of its rounds; ``None`` of a direct one.
      values: what else is to be finite.
    """
    found = [jnp.ravel(e) for e in errors] or [jnp.zeros(1, jnp.float32)]
    residual = lax.stop_gradient(jnp.where(_are_finite(values), largest(found), jnp.nan))
    rounds = lax.stop_gradient(Rounds.of(1) if rounds is None else rounds)
    accurate = residual <= bound
    if rounds.converged is not None:
        accurate |= rounds.converged
    why: Any = Status.INACCURATE
    if rounds.broke_down is not None:
        why = jnp.where(rounds.broke_down, Status.BREAKDOWN, Status.INACCURATE)
    status = jnp.where(accurate, Status.OK, why)
    status = jnp.where(jnp.isfinite(residual), status, Status.NON_FINITE)
    return Report(
        status=status.astype(jnp.int32),
        residual=residual,
        iterations=rounds.count,
        bound=jnp.asarray(bound, residual.dtype),
        fell_back=jnp.asarray(fell_back if rounds.fell_back is None else rounds.fell_back),
        history=rounds.history,
        contraction=rounds.contraction,
        cut_off=rounds.cut_off,
    )


def report_on_values(values: PyTree, *, fell_back: bool = False) -> Report:
    """The report where no solver has a part: the only question is whether the values are finite."""
    known = [v for v in jax.tree.leaves(values) if not is_hi_type(jax.typeof(v))]
    return made_report([], bound_of(known), known, fell_back=fell_back)


def worst_of(reports: Sequence[Report]) -> Report:
    """The report on several systems, or stretches of a stack, together."""
    if len(reports) == 1:
        return reports[0]
    status: Any = Status.OK
    for kind in (Status.INACCURATE, Status.BREAKDOWN, Status.NON_FINITE):
        status = jnp.where(_any([r.status == kind for r in reports]), kind, status)
    return Report(
        status=status.astype(jnp.int32),
        residual=largest([r.residual for r in reports]),
        iterations=largest([r.iterations for r in reports]),
        bound=largest([r.bound for r in reports]),
        fell_back=_any([r.fell_back for r in reports]),
        history=_worst_known([r.history for r in reports]),
        contraction=_worst_known([r.contraction for r in reports]),
        cut_off=_worst_known([r.cut_off for r in reports]),
    )


def _worst_known(values: Sequence[Array | None]) -> Array | None:
    """The largest of each entry; a history goes on where another has ended."""
    known = [v for v in values if v is not None]
    if len(known) < len(values):
        return None
    return functools.reduce(jnp.fmax if known[0].ndim else jnp.maximum, known)


def _any(flags: Sequence[Array]) -> Array:
    return jnp.any(jnp.stack(flags))


def cotangents(leaves: Sequence[Array]) -> list[Array]:
    """Right-hand sides that are not special: c and -c, pseudo-random, always the same ones.

    c is about the square root of the smallest normal number of their dtype, so that numbers have as
    far to go up as to go down and further: where vectors stay in the range, the products of a tree
    may have left it. Of several dtypes it is that with the least range: what one leaf hands to
    another is not lost on the way.

    Example:
      >>> import jax.numpy as jnp
      >>> [(a * 2.0**63).tolist() for a in cotangents([jnp.zeros(4)])]
      [[1.0, 1.0, 1.0, -1.0]]
    """
    least = max((jnp.finfo(a.dtype).minexp for a in leaves), default=0)
    return [_signs(k, a, 2.0 ** (least // 2)) for k, a in enumerate(leaves)]


def _signs(seed: int, like: Array, size: float) -> Array:
    """One bit of a hash of each position: a stream of JAX would take longer to compile."""
    hashed = lax.iota(jnp.uint32, math.prod(like.shape)) + np.uint32(seed << 16)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        hashed = (hashed ^ (hashed >> shift)) * np.uint32(factor)
    signs = jnp.where(hashed >> 31 == 0, 1.0, -1.0).reshape(like.shape)
    # Inside shard_map they vary over the mesh axes of what they are like.
    return jnp.zeros_like(like) + (size * signs).astype(like.dtype)


def _are_finite(values: PyTree) -> Array:
    """Whether all floats are."""
    leaves = [v for v in jax.tree.leaves(values) if _is_inexact(jnp.result_type(v))]
    return ~_any([jnp.any(~jnp.isfinite(v)) for v in leaves] or [jnp.asarray(False)])


def error_bound(dtype: np.dtype) -> float:
    """The largest residual of a solution of this dtype that is called accurate.

    Example:
      >>> import jax.numpy as jnp
      >>> error_bound(jnp.float32) == 1000 * 2.0**-23, error_bound(jnp.float16) == 2.0**-5
      (True, True)
    """
    eps = float(jnp.finfo(dtype).eps)
    return min(1000 * eps, math.sqrt(eps))


def _is_inexact(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.inexact)


def bound_of(values: PyTree) -> float:
    """The bound for arrays of several dtypes, that of the shortest; other than floats have none."""
    dtypes = [jnp.result_type(v) for v in jax.tree.leaves(values)]
    return max(map(error_bound, filter(_is_inexact, dtypes)), default=error_bound(jnp.float32))


def backward_error(
    operator: Operator | None, v: PyTree, out: PyTree, added: PyTree, *, bound: float
) -> Array:
    """max |out - added - A v| / (|out| + |added| + |A| |v|), over all entries and a whole stack.

    An entry whose denominator is zero has no error. What underflow may lose counts as no more than
    ``bound``. Of an operator whose magnitude is not known, the largest |A v| of a map stands for
    its |A| |v|, which it does not exceed: the error is not underrated.

    Args:
      operator: A; ``None`` is 0.
      v: vectors (..., cols); of a `MatrixFree` operator, what it takes.
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
    outs = jax.tree.leaves(out)
    none, terms = [None] * len(outs), 2
    pushed: tuple[Sequence[Any], Sequence[Any]] = (none, none)
    if operator is not None and v is not None:
        pushed, terms = _product(operator, v), terms + operator.shape[1]
    rows = zip(outs, none if added is None else jax.tree.leaves(added), *pushed, strict=True)
    return largest([_error(*row, terms, bound) for row in rows])


def _error(out, added, pushed, magnitude, terms, bound):
    """`backward_error` of one array, A v and |A| |v| being known, or ``None``."""
    own, wide = out.dtype, accumulation_dtype(out.dtype)
    parts = [part.astype(wide) for part in (out, added) if part is not None]
    error, size = parts[0] - sum(parts[1:]), sum(map(jnp.abs, parts))
    if pushed is not None:
        error, size = error - pushed.astype(wide), size + magnitude
    lost = max(float(jnp.finfo(own).smallest_subnormal), float(jnp.finfo(wide).tiny))
    # Divided by an infinite size, every error would be none.
    size = jnp.where(jnp.isfinite(size), size + terms * lost / bound, jnp.nan)
    return largest(jnp.abs(error) / size)


def _product(operator: Operator, v: PyTree) -> tuple[list[Array], list[Array]]:
    """A v and |A| |v|, the arrays of each."""
    magnitude = operator.magnitude()
    if magnitude is not None:
        v = v.astype(accumulation_dtype(v.dtype))
        return [operator.matvec(v)], [magnitude.matvec(jnp.abs(v))]
    pushed = jax.tree.leaves(operator.matvec(v))
    wide = [jnp.abs(a.astype(accumulation_dtype(a.dtype))) for a in pushed]
    rows = [jnp.max(a, axis=-1, keepdims=True, initial=0) if a.ndim else a for a in wide]
    if len({r.shape for r in rows}) == 1:
        rows = [functools.reduce(jnp.maximum, rows)] * len(rows)
    return pushed, rows


def errors_of_steps(
    operators: Operator, v: PyTree, out: PyTree, added: PyTree, *, bound: float
) -> Array:
    """The `backward_error` of each map of a stack, all values being stacked."""
    return operators.of_each(functools.partial(backward_error, bound=bound), v, out, added)


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
    v, out, added = solution[1:], solution[:-1], system.g[:-1]
    steps = errors_of_steps(system.operators, v, out, added, bound=bound)
    return [steps, judge(None, None, solution[-1], system.g[-1])]
