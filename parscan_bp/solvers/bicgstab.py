"""BiCGStab: a Krylov method with two short recurrences."""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from parscan_bp.arguments import check_number, set_ints
from parscan_bp.report import Rounds, bound_of
from parscan_bp.solvers.base import Complexity
from parscan_bp.solvers.fixed_point import SystemAsFixedPoint
from parscan_bp.solvers.iterative import IterativeSolver
from parscan_bp.trees import at_least_single
from parscan_bp.types import Array, PyTree


@dataclasses.dataclass(frozen=True, repr=False)
class BiCGStab(IterativeSolver):
    """Stabilised bi-conjugate gradients on (I - N) x = b, with products alone.

    The system is scaled by its block diagonal, equations (38) and (39), so that all eigenvalues are
    1: with lambda = E v it is ours as it stands. Its product is

        q_t = p_t - D_t^-1 W_t p_{t-1},    q_{t-1} = p_{t-1} - E_{t-1}^-1 W_t^T p_t,

    where the paper's (40) and (41) have + W, and (41) the rows in another order: a slip, as
    D^-1 L of (18) has -D^-1 W beside the diagonal.

    With the first residual as shadow residual, as is usual, it breaks down on the second round
    where only the last cotangent is other than zero: powers of N bring b to places where b has
    nothing. So the shadow residual is random. A round whose divisor is lost in rounding (rho, the
    product of shadow and A p, or omega) is a breakdown: the method starts again from where it is,
    with its true residual and another shadow, ``restarts`` times; then it stops and
    `Report.status` says ``BREAKDOWN``. So it does where the recurrence says that the residual is
    small, and it is not. All that is no help where maps are far from normal or products grow:
    equal eigenvalues say nothing then. Expect more products than `Jacobi` takes.

    b is divided by its size first, and sums have at least float32, so that squares stay in the
    range.

    Steps 2 k, work 2 k n vector products for k rounds, memory all linearised steps and seven
    vectors; inner products, which are sums over all steps, are not counted.

    Args:
      rounds: rounds at most, of two products each; ``None`` is n.
      tol: the residual to stop at, |b - (I - N) x| / |b| in the Euclidean norm of all steps;
        ``None`` is a thousand roundings, see `Report.bound`.
      restarts: breakdowns after which it goes on.
      seed: of the shadow residuals.

    Raises:
      TypeError, ValueError: if ``rounds`` is not an int of at least 1, ``restarts`` or ``seed`` of
        at least 0, or ``tol`` no number of at least 0.

    Source: M. Naumov, 2017, section 3.2, equations (38) to (41); H. van der Vorst, SIAM J. Sci.
    Stat. Comput. 13 (1992).

    Example:
      >>> import jax.numpy as jnp, parscan_bp as pb
      >>> from parscan_bp.operators import Diagonal
      >>> system = pb.Uniform(Diagonal(jnp.full((50, 1), 0.1)), jnp.ones((51, 1)))
      >>> solution, report = pb.solve(system, pb.BiCGStab(tol=1e-5), report=True)
      >>> round(float(solution[0, 0]), 3), pb.Status(int(report.status)).name
      (1.111, 'OK')
    """

    rounds: int | None = None
    _: dataclasses.KW_ONLY
    tol: float | None = None
    restarts: int = 10
    seed: int = 0

    def __post_init__(self):
        set_ints(self, ("rounds",), rounds=1, restarts=0, seed=0)
        if self.tol is not None:
            check_number("tol", self.tol)

    def iterate(self, problem, *, record):
        problem.check_floats(self)
        krylov = _Krylov.of(problem, self.seed)
        tol = bound_of(problem.zero) if self.tol is None else self.tol
        most = problem.length if self.rounds is None else self.rounds
        first = krylov.begin(krylov.zero, krylov.b, jnp.zeros((), jnp.int32))
        size = _norm(first.r)
        history = jnp.full_like(size, jnp.nan, shape=(most + 1,)) if record else None

        def is_small(r):
            return _norm(r) <= tol * size

        def goes_on(carry):
            k, state, _ = carry
            return (k < most) & ~is_small(state.r) & (state.breakdowns <= self.restarts)

        def advance(carry):
            k, state, history = carry
            if history is not None:
                history = history.at[k].set(_norm(state.r) / size)
            new = krylov.round(state)
            again = new.broke | is_small(new.r)

            def restarted():
                # What the recurrence calls small may not be: it is told by the true residual.
                return krylov.begin(new.x, krylov.residual(new.x), new.breakdowns + 1)

            new = lax.cond(again, restarted, lambda: new._replace(broke=jnp.zeros_like(new.broke)))
            return k + 1, new, history

        start = (jnp.zeros((), jnp.int32), first, history)
        k, state, history = lax.while_loop(goes_on, advance, start)
        if history is not None:
            history = history.at[k].set(_norm(state.r) / size)
        converged = is_small(state.r)
        broke = ~converged & (state.breakdowns > self.restarts)
        x = krylov.solution(state.x)
        return x, Rounds(k, converged=converged, broke_down=broke, history=history)

    def complexity(self, n):
        """Of the most rounds that it takes, without restarts."""
        rounds = n if self.rounds is None else self.rounds
        return Complexity(
            steps=2 * rounds + 1,
            matrix_products=0,
            vector_products=(2 * rounds + 1) * n,
            operators=n,
        )


class _State(NamedTuple):
    """A round of the method, between two of them.

    Attributes:
      x, r, shadow, p: solution, residual, shadow residual and direction.
      rho: the product of shadow and r.
      breakdowns: how often it began again.
      broke: whether this round has no successor.
    """

    x: PyTree
    r: PyTree
    shadow: PyTree
    p: PyTree
    rho: Array
    breakdowns: Array
    broke: Array


@dataclasses.dataclass(frozen=True, eq=False)
class _Krylov:
    """(I - N) x = b in at least float32, b being of size one.

    Attributes:
      problem: the equation.
      scale: the power of two by which b was divided.
      b: that right-hand side.
      seed: of the shadow residuals.
    """

    problem: SystemAsFixedPoint
    scale: Array
    b: PyTree
    seed: int

    @classmethod
    def of(cls, problem: SystemAsFixedPoint, seed: int) -> _Krylov:
        b = _wide(problem.image(problem.zero))
        largest = jnp.max(jnp.stack([jnp.max(jnp.abs(a), initial=0) for a in jax.tree.leaves(b)]))
        usable = jnp.isfinite(largest) & (largest > 0)
        scale = jnp.where(usable, jnp.ldexp(jnp.ones_like(largest), jnp.frexp(largest)[1]), 1)
        return cls(problem, scale, jax.tree.map(lambda a: a / scale.astype(a.dtype), b), seed)

    @property
    def zero(self) -> PyTree:
        return jax.tree.map(jnp.zeros_like, self.b)

    def solution(self, x: PyTree) -> PyTree:
        return jax.tree.map(
            lambda a, like: (a * self.scale.astype(a.dtype)).astype(like.dtype),
            x,
            self.problem.zero,
        )

    def product(self, x: PyTree) -> PyTree:
        """(I - N) x."""
        narrow = jax.tree.map(lambda a, like: a.astype(like.dtype), x, self.problem.zero)
        return jax.tree.map(jnp.subtract, x, _wide(self.problem.push(narrow)))

    def residual(self, x: PyTree) -> PyTree:
        """The true one, b - (I - N) x."""
        return jax.tree.map(jnp.subtract, self.b, self.product(x))

    def begin(self, x: PyTree, r: PyTree, breakdowns: Array) -> _State:
        """The first round from x, of residual r, with a shadow of its own."""
        key = jax.random.fold_in(jax.random.key(self.seed), breakdowns)
        leaves, tree = jax.tree.flatten(r)
        drawn = [
            jax.random.normal(jax.random.fold_in(key, k), a.shape, jnp.abs(a).dtype).astype(a.dtype)
            for k, a in enumerate(leaves)
        ]
        shadow = jax.tree.unflatten(tree, drawn)
        rho = _dot(shadow, r)
        return _State(x, r, shadow, r, rho, breakdowns, jnp.zeros_like(jnp.isnan(rho)))

    def round(self, at: _State) -> _State:
        """Two products: along p, and against what is left of the residual."""
        v = self.product(at.p)
        divisor = _dot(at.shadow, v)
        alpha = at.rho / divisor
        s = _plus(at.r, -alpha, v)
        t = self.product(s)
        along, square = _dot(t, s), _dot(t, t)
        omega = jnp.where(square == 0, 0, along / square)
        x = _plus(_plus(at.x, alpha, at.p), omega, s)
        r = _plus(s, -omega, t)
        rho = _dot(at.shadow, r)
        p = _plus(r, rho / at.rho * alpha / omega, _plus(at.p, -omega, v))
        # Without a divisor there is no step: x stays.
        stays = _is_lost(divisor, at.shadow, v)
        x, r = jax.tree.map(lambda old, new: jnp.where(stays, old, new), (at.x, at.r), (x, r))
        broke = stays | _is_lost(along, t, s) | _is_lost(rho, at.shadow, r)
        return _State(x, r, at.shadow, p, rho, at.breakdowns, broke)


def _wide(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda a: a.astype(at_least_single(a.dtype)), tree)


def _dot(a: PyTree, b: PyTree) -> Array:
    parts = jax.tree.map(lambda a, b: jnp.vdot(a, b, precision="highest"), a, b)
    return functools.reduce(jnp.add, jax.tree.leaves(parts))


def _norm(a: PyTree) -> Array:
    return jnp.sqrt(jnp.real(_dot(a, a)))


def _plus(a: PyTree, factor: Array, b: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: (a + factor * b).astype(a.dtype), a, b)


def _is_lost(product: Array, a: PyTree, b: PyTree) -> Array:
    """Whether an inner product has no digit left; also where it is NaN."""
    return ~(jnp.abs(product) > jnp.finfo(product.dtype).eps * _norm(a) * _norm(b))
