"""The solution of a linear system as one operation, with its transpose and its derivatives.

For ``A(r) u = b``, linear in u and b, the tangent is another solution,

    A u' = b' - A' u,

and that is what reverse-mode transposes. It visits every step twice more, once for the
product A' u, once to solve. Where a program asks for tangents and nothing transposes them,
as a Hessian-vector product does of a gradient, the program of the solution can be
differentiated as it stands instead: one visit in which values and tangents are made
together, with nothing kept in between. `lax.custom_linear_solve` knows the first way only.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from parscan_bp.jaxprs.differentiated import values_after_derivative
from parscan_bp.jaxprs.replay import evaluate
from parscan_bp.primitives.mapping import at_front, vmapped
from parscan_bp.primitives.pushforward import Pushforward, is_forward_only
from parscan_bp.primitives.zeros import Zero
from parscan_bp.trees import eval_shape, replace_at
from parscan_bp.types import Array, PyTree


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class SubSystem:
    """What is left of a system where only some leaves of its right-hand side are not zero.

    Attributes:
      solve: the system of the unknowns that these reach, with all residuals; ``None`` for the
        whole system.
      b: pytree structure of its right-hand side, which is a flat part of the whole one.
      reached: for each leaf of the whole right-hand side, whether its unknown is reached. One that
        is not equals its right-hand side.
      hinted: whether the hints of the whole system are of this one, too.
    """

    solve: LinearSolve | None
    b: Any
    reached: tuple[bool, ...]
    hinted: bool = False


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class LinearSolve:
    """``(residuals, b, hints) -> u`` with ``matvec(residuals, u) = b``; u has the types of b.

    Hints are values that follow from the residuals, as a factorisation does of a matrix, and save
    a solution from making them. Their tangents have to be those that follow, too.

    Compared by identity: JAX keeps a program for each.

    Attributes:
      matvec: ``(residuals, u) -> b``, every leaf of which depends on every float leaf of both
        arguments; otherwise a derivative of the solution would have a right-hand side that is
        not linear in some leaf.
      forward: the solution for ``(residuals, b)``, or ``(residuals, b, hints)`` where there are
        any.
      backward: that of the transposed system, with the same hints.
      through: whether `forward` and `backward` may be differentiated themselves, unless they have
        effects, or rules of the user's make of them what they are not.
      is_own: says whether `matvec` is after a derivative what it was, see
        `values_after_derivative`; ``None`` if so.
      plain: whether they refuse nothing and have no effects.
      sees_zeros: whether they take a `Zero` for a leaf of b that is known to be zero, as the
        cotangent of an output that nothing reads.
      backward_part: for a right-hand side of the transposed system, given by whether each leaf is
        other than zero, the `SubSystem` of it; its solve is one of which `backward` is wanted.
      unread: tells the leaves of the residuals by which the solution has no derivative.
    """

    matvec: Callable[[PyTree, PyTree], PyTree]
    forward: Callable[..., PyTree]
    backward: Callable[..., PyTree]
    through: bool = False
    plain: bool = False
    sees_zeros: bool = False
    backward_part: Callable[[tuple[bool, ...]], SubSystem] | None = None
    unread: Callable[[], Collection[int]] = tuple
    is_own: Callable[[], bool] | None = None

    def __call__(self, residuals: PyTree, b: PyTree, hints: PyTree = None) -> PyTree:
        known, tree = jax.tree.flatten(residuals)
        given, hint_tree = jax.tree.flatten(hints)
        values, b_tree = jax.tree.flatten(b)
        flat, operands = _Flat(self, tree, b_tree, hint_tree), [*known, *given, *values]
        return jax.tree.unflatten(b_tree, flat.traced(*operands).bind(*operands))

    @functools.cached_property
    def transposed(self) -> LinearSolve:
        """The solution of the transposed system."""

        def vecmat(residuals, v):
            like = eval_shape(lambda: jax.tree.map(jnp.zeros_like, v))
            return jax.linear_transpose(functools.partial(self.matvec, residuals), like)(v)[0]

        other = dataclasses.replace(
            self,
            matvec=vecmat,
            forward=self.backward,
            backward=self.forward,
            backward_part=None,
        )
        other.__dict__["transposed"] = self
        return other

    @functools.cached_property
    def later(self) -> Callable[[PyTree, PyTree], PyTree]:
        """`matvec`, of which nothing is evaluated and kept before it is needed."""
        return jax.checkpoint(self.matvec, prevent_cse=False)

    @functools.cached_property
    def _made(self) -> dict[Any, Any]:
        """What was made of this solution before."""
        return {}

    def batched(
        self, dims: tuple[int | None, ...], hint_dims: tuple[int | None, ...], how: Any
    ) -> LinearSolve:
        """The solution for b with a leading axis; ``dims`` are those of the residuals' leaves."""

        def mapped(f):
            def run(residuals, v, *hints):
                leaves, tree = jax.tree.flatten(residuals)
                given, hint_tree = jax.tree.flatten(hints)

                def call(leaves, v, given):
                    hints = jax.tree.unflatten(hint_tree, given)
                    return f(jax.tree.unflatten(tree, leaves), v, *hints)

                axes = (list(dims), 0, list(hint_dims) if hints else [])
                return vmapped(call, axes, how)(leaves, v, given)

            return run

        find = self.backward_part

        def part(nonzero):
            assert find is not None
            found = find(nonzero)
            if found.solve is None:
                return found
            of_hints = hint_dims if found.hinted else ()
            return dataclasses.replace(found, solve=found.solve.batched(dims, of_hints, how))

        key = (dims, hint_dims, how.size, how.name, how.spmd_name)
        if key not in self._made:
            self._made[key] = dataclasses.replace(
                self,
                matvec=mapped(self.matvec),
                forward=mapped(self.forward),
                backward=mapped(self.backward),
                backward_part=None if find is None else part,
            )
        return self._made[key]

    def pushforward(self, flat: _Flat, args: Sequence[Array], moving: tuple[int, ...]):
        """The solution with its tangent, the arguments at ``moving`` having tangents."""
        avals = [jax.typeof(v) for v in args]
        key = (flat, moving, *((a.shape, a.dtype) for a in avals))
        if key not in self._made:
            self._made[key] = flat.pushforward(avals, moving)
        return self._made[key]


NO_HINTS = jax.tree.structure(None)


@dataclasses.dataclass(frozen=True)
class _Flat:
    """A `LinearSolve` of leaves: those of the residuals, the hints, and then those of b.

    Attributes:
      solve: the solution.
      residuals: pytree structure of the residuals.
      b: pytree structure of b.
      hints: pytree structure of the hints.
      zeros: for each leaf of b, whether it is known to be zero.
      effects: JAX's effects of the solution, as of a kernel that is simulated.
    """

    solve: LinearSolve
    residuals: Any
    b: Any
    hints: Any = NO_HINTS
    zeros: tuple[bool, ...] = ()
    effects: frozenset[Any] = frozenset()

    @property
    def known(self) -> int:
        return self.residuals.num_leaves + self.hints.num_leaves

    def __call__(self, *values: Array) -> list[Array]:
        n = self.residuals.num_leaves
        residuals = jax.tree.unflatten(self.residuals, values[:n])
        leaves: list[Array | Zero] = list(values[self.known :])
        if self.solve.sees_zeros and self.zeros:
            pairs = zip(values[self.known :], self.zeros, strict=True)
            leaves = [Zero(v) if zero else v for v, zero in pairs]
        b = jax.tree.unflatten(self.b, leaves)
        if self.hints == NO_HINTS:
            return jax.tree.leaves(self.solve.forward(residuals, b))
        hints = jax.tree.unflatten(self.hints, values[n : self.known])
        return jax.tree.leaves(self.solve.forward(residuals, b, hints))

    def bind(self, *values: Array) -> list[Array]:
        return _solve_p.bind(*values, solve=self)

    def replace(self, solve: LinearSolve) -> _Flat:
        return dataclasses.replace(self, solve=solve)

    def given(self, b: Sequence[Any]) -> _Flat:
        """The same for this b, whose symbolic zeros are known to be zero."""
        return dataclasses.replace(self, zeros=tuple(isinstance(v, ad.Zero) for v in b))

    def nonzero(self, leaves: Sequence[int]) -> _Flat:
        """The same where these leaves of b may be other than zero: their tangents are."""
        zeros = (zero and k not in leaves for k, zero in enumerate(self.zeros))
        return dataclasses.replace(self, zeros=tuple(zeros))

    def traced(self, *values: Array) -> _Flat:
        """The same with its effects; what a solver refuses, it refuses here."""
        if self.solve.plain:
            return self
        try:
            jaxpr = jax.make_jaxpr(self)(*values)
        except TypeError:
            # A function with a VJP of its own has no tangents, and reverse-mode needs none: this
            # is refused where it is run, not where it is only there to be transposed.
            jaxpr = jax.make_jaxpr(self.replace(self.solve.transposed))(*values)
        return dataclasses.replace(self, effects=frozenset(jaxpr.effects))

    def tangent(
        self,
        args: Sequence[Array],
        u: Sequence[Array],
        moving: Sequence[int],
        ts: Sequence[Array],
        later: _Flat,
    ) -> list[Array]:
        """``u' = later(b' - A' u)`` for the tangents ``ts`` of the arguments at ``moving``."""
        n, first = self.residuals.num_leaves, self.known
        given = dict(zip(moving, ts, strict=True))
        fixed = [k for k in moving if k < n]

        def product(*values):
            residuals = jax.tree.unflatten(self.residuals, replace_at(args[:n], fixed, values))
            return jax.tree.leaves(self.solve.later(residuals, jax.tree.unflatten(self.b, u)))

        at, directions = [args[k] for k in fixed], [given[k] for k in fixed]
        _, products = jax.jvp(product, at, directions)
        rhs = [given[k] - p if k in given else -p for k, p in enumerate(products, first)]
        return later.given(rhs).bind(*args[:first], *rhs)

    def after_derivative(self, values: Sequence[Array], moving: Sequence[int]) -> _Flat:
        """The solution of the system as it is beside its derivative by these of the values."""
        n, made = self.residuals.num_leaves, self.solve._made
        avals = [jax.typeof(v) for v in [*values[:n], *values[self.known :]]]
        fixed = tuple(k for k in moving if k < n)
        key = ("later", self.residuals, self.b, fixed, *avals)
        if key not in made:
            made[key] = self._after_derivative(avals, fixed)
        return self.replace(made[key])

    def _after_derivative(self, avals, fixed) -> LinearSolve:
        n = self.residuals.num_leaves

        def product(*values):
            residuals = jax.tree.unflatten(self.residuals, values[:n])
            return jax.tree.leaves(self.solve.matvec(residuals, self.b.unflatten(values[n:])))

        closed = jax.make_jaxpr(product)(*avals)
        later = values_after_derivative(closed, fixed)
        if later is closed:
            return self.solve

        def matvec(residuals, u):
            return self.b.unflatten(evaluate(later, jax.tree.leaves((residuals, u))))

        # A part of it would be one of the system as it was; so is what that does not read.
        return dataclasses.replace(self.solve, matvec=matvec, backward_part=None, unread=tuple)

    def pushforward(self, avals: Sequence[Any], moving: tuple[int, ...]) -> Pushforward:
        """See `LinearSolve.pushforward`."""

        def together(args, ts):
            run = lambda *values: self(*replace_at(args, moving, values))  # noqa: E731
            return jax.jvp(run, [args[k] for k in moving], ts)

        def primal(args):
            u = self.bind(*args)
            return u, u

        def tangent(args, u, ts):
            return self.tangent(args, u, moving, ts, self)

        gives = list(avals[self.known :])
        in_ts = [avals[k].to_tangent_aval() for k in moving]
        out_ts = [a.to_tangent_aval() for a in gives]
        return Pushforward(together, primal, tangent, (list(avals), in_ts), (gives, out_ts))


_solve_p = Primitive("linear_solve")
_solve_p.multiple_results = True


@_solve_p.def_impl
def _run(*values, solve):
    return solve(*values)


@_solve_p.def_effectful_abstract_eval
def _types(*avals, solve):
    return list(avals[solve.known :]), solve.effects


def _differentiate(primals, tangents, *, solve):
    n = solve.known
    moving = tuple(k for k, t in enumerate(tangents) if not isinstance(t, ad.Zero))
    fixed = any(k < n for k in moving)
    own = not fixed or solve.solve.is_own is None or solve.solve.is_own()
    # Rules are run of all that moves, also of what the solution has no derivative by.
    later = solve if own else solve.after_derivative(primals, moving)
    unread = solve.solve.unread() if fixed else ()
    moving = tuple(k for k in moving if k not in unread)
    if not any(k < n for k in moving):
        rhs = [ad.instantiate_zeros(t) for t in tangents[n:]]
        return later.bind(*primals), later.given(tangents[n:]).bind(*primals[:n], *rhs)
    ts = [tangents[k] for k in moving]
    if own and solve.solve.through and not solve.effects and is_forward_only(primals, ts):
        solve = solve.nonzero([k - n for k in moving])
        return solve.solve.pushforward(solve, primals, moving)(primals, ts)
    u = later.bind(*primals)
    return u, solve.tangent(primals, u, moving, ts, later)


def _transpose(cts, *values, solve):
    n = solve.known
    nonzero = tuple(not isinstance(ct, ad.Zero) for ct in cts)
    if not any(nonzero):
        return [None] * len(values)
    find = solve.solve.backward_part
    part = SubSystem(None, solve.b, (True,) * len(cts)) if find is None else find(nonzero)
    solved = cts
    if any(part.reached):
        solved = _solve_transposed(solve, values[:n], cts, part)
    # A part of b that is known is zero: the operation is linear in all of b.
    wanted = [ad.is_undefined_primal(v) for v in values[n:]]
    out = [v if r else ct for v, ct, r in zip(solved, cts, part.reached, strict=True)]
    return [None] * n + [v if w else None for v, w in zip(out, wanted, strict=True)]


def _solve_transposed(solve, known, cts, part):
    """The solution of the transposed system, ``None`` where it is not reached."""
    places = list(range(len(cts)))
    if part.solve is not None:
        places = [k for k in places if part.reached[k]]
        hints = solve.hints if part.hinted else NO_HINTS
        known = known[: solve.residuals.num_leaves + hints.num_leaves]
        solve = _Flat(part.solve, solve.residuals, part.b, hints)
    given = [cts[k] for k in places]
    operands = [*known, *map(ad.instantiate_zeros, given)]
    transposed = solve.replace(solve.solve.transposed).given(given)
    solved = transposed.traced(*operands).bind(*operands)
    return replace_at([None] * len(cts), places, solved)


def _batch(how, values, dims, *, solve):
    if all(d is None for d in dims):
        out = solve.bind(*values)
        return out, [None] * len(out)
    n = solve.known
    front = [at_front(v, d) for v, d in zip(values, dims, strict=True)]
    known = tuple(None if d is None else 0 for d in dims[:n])
    m = solve.residuals.num_leaves
    b = [
        jnp.broadcast_to(v, (how.size, *v.shape)) if d is None else v
        for v, d in zip(front[n:], dims[n:], strict=True)
    ]
    solve = solve.replace(solve.solve.batched(known[:m], known[m:], how))
    out = solve.bind(*front[:n], *b)
    return out, [0] * len(out)


mlir.register_lowering(_solve_p, mlir.lower_fun(lambda *v, solve: solve(*v), True))
ad.primitive_jvps[_solve_p] = _differentiate
ad.primitive_transposes[_solve_p] = _transpose
batching.fancy_primitive_batchers[_solve_p] = _batch
