"""The differentiation rule of a stack of layers: one linear solve, for every order and mode.

As for the scan, the tangent of the stack is one linear solve on the augmented
system. Its unknowns are the tangents of the active parameters, of the input if it is active,
and of the activations, with rows

    dp = b_p,   dx_0 = b_0,   dx_k - J_k dx_{k-1} - f_p dp_k = b_k.

Forward-mode solves it from the input, reverse-mode its transpose from the output; the
parameter cotangents follow from the cotangents of the activations, layer by layer. The value
of the stack needs the last tangent only, and then the middle ones are no unknowns: the rule
exists in both forms, the whole one for the derivatives of its own residuals.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import jax
from jax import lax
from jax.custom_derivatives import SymbolicZero

from parscan_bp.jaxprs.obstacles import check_no_obstacle, explicit_sharding, symbolic_size
from parscan_bp.jaxprs.replay import vary_alike
from parscan_bp.layers import Layer, activations
from parscan_bp.layers.base import flat
from parscan_bp.operators import Operator
from parscan_bp.primitives.linear_solve import LinearSolve
from parscan_bp.primitives.with_rule import WithRule
from parscan_bp.primitives.zeros import empty_of, tied_zeros, zeros_of
from parscan_bp.report import cotangents, report_on
from parscan_bp.solve import solve_lower, solve_upper
from parscan_bp.solvers import Solver
from parscan_bp.system import Ragged
from parscan_bp.trees import add
from parscan_bp.types import Array, PyTree


@dataclasses.dataclass(frozen=True)
class ActiveLayers:
    """What is differentiated.

    Attributes:
      leaves: for each layer the positions of its active parameter leaves.
      x: whether the input is.
      whole: whether every activation's tangent is an unknown, or the last one's only.
    """

    leaves: tuple[tuple[int, ...], ...]
    x: bool
    whole: bool

    @property
    def first(self) -> int:
        """The first layer whose output has a tangent."""
        return 0 if self.x else next(k for k, own in enumerate(self.leaves) if own)

    @property
    def unknown(self) -> range:
        """Positions of the activations whose tangents are unknowns."""
        n = len(self.leaves)
        return range(self.first + 1 if self.whole else n, n + 1)

    @property
    def solved(self) -> range:
        """Positions of the activations in the bi-diagonal system."""
        return range(0 if self.x else self.first + 1, len(self.leaves) + 1)


@dataclasses.dataclass(frozen=True, eq=False)
class ChainRule:
    """A stack of layers with its derivatives. Functions are made once, so that JAX caches them.

    Attributes:
      layers: the layers.
      solver: what solves the bi-diagonal system.
    """

    layers: tuple[Layer, ...]
    solver: Solver

    def __call__(self, params: Sequence[PyTree], x: Array) -> Array:
        """x_n."""
        return self._value(params, x)

    @functools.cached_property
    def trace(self):
        """Function from parameters and input, or their types, to the jaxpr of the layers."""
        return jax.make_jaxpr(lambda params, x: activations(self.layers, params, x)[-1])

    @functools.cached_property
    def _value(self):
        def value(params, x):
            return activations(self.layers, params, x)[-1]

        def jvp(primals, tangents):
            check_no_obstacle(obstacle(*primals), self.solver)
            xs = self._activations(*primals)
            return xs[-1], self._tangents(primals, tangents, xs, whole=False)[-1]

        return WithRule(value, jvp)

    @functools.cached_property
    def _activations(self):
        """[x_0, ..., x_n], which derivatives need."""

        def run(params, x):
            return activations(self.layers, params, x)

        def jvp(primals, tangents):
            xs = values(*primals)
            return xs, self._tangents(primals, tangents, xs, whole=True)

        values = WithRule(run, jvp)
        return values

    @functools.cached_property
    def report(self):
        """Function from parameters and input to the `Report` on their gradient.

        Its system is that of the gradient by all parameters, or of a stack without any by its
        input; see `report.cotangents` for the right-hand side.
        """

        @jax.jit
        def report(params, x):
            xs = activations(self.layers, params, x)
            leaves = [tuple(range(len(jax.tree.leaves(own)))) for own in params]
            active = ActiveLayers(tuple(leaves), not any(leaves), whole=True)
            operators = self._operators(active, params, xs)
            system = Ragged(operators, cotangents([flat(xs[k]) for k in active.solved]))
            return report_on(system, self.solver.run_ragged(system), xs[-1])

        return lambda params, x: report(*lax.stop_gradient((list(params), x)))

    def _tangents(self, primals, tangents, xs, *, whole):
        """Tangents of the activations; where they are not unknowns, symbolic zeros."""
        params, _ = primals
        t_params, t_x = tangents
        t_leaves = [jax.tree.leaves(t) for t in t_params]
        moving = [
            tuple(j for j, t in enumerate(own) if not isinstance(t, SymbolicZero))
            for own in t_leaves
        ]
        active = ActiveLayers(tuple(moving), not isinstance(t_x, SymbolicZero), whole)
        out = zeros_of(xs)
        if not active.x and not any(moving):
            return out
        dp = [[own[j] for j in kept] for own, kept in zip(t_leaves, moving, strict=True)]
        dx = [t_x] if active.x else []
        # Of a tangent that loses its weak type here, the cotangent has it again.
        dp, dx = jax.tree.map(lambda t: lax.convert_element_type(t, t.dtype), (dp, dx))
        (params, xs), dp, dx = vary_alike(((params, xs), dp, dx))
        tie = empty_of((dp, dx))
        zeros = [tied_zeros(tie, xs[k]) for k in active.unknown]
        *_, d = self.solve(active)((params, xs), (dp, dx, zeros))
        for k, t in zip(active.unknown, d, strict=True):
            out[k] = t
        if active.x:
            out[0] = t_x
        return out

    @functools.cached_property
    def solve(self):
        """Function from a choice of active inputs to its augmented solve."""
        return functools.cache(self._augmented)

    def _augmented(self, active: ActiveLayers):

        @jax.jit
        def matvec(residuals, u):
            params, xs = residuals
            dp, dx, d = u
            known, t, rows = dict(zip(active.unknown, d, strict=True)), dx[0] if dx else None, []
            for k in range(active.first, len(self.layers)):
                pushed = self._push(active, k, params, xs[k], dp[k], t)
                t = known.get(k + 1, pushed)
                if k + 1 in known:
                    rows.append(t - pushed)
            # Every row depends on every unknown and every residual, or a derivative of the
            # solve would have a right-hand side that is not linear in some leaf.
            tie = empty_of(u) * empty_of(residuals)
            return jax.tree.map(lambda row: row + tied_zeros(tie, row), (dp, dx, rows))

        @jax.jit
        def forward(residuals, b):
            params, xs = residuals
            dp, dx, d = b
            given = dict(zip(active.unknown, d, strict=True))
            g: list[Array | None] = [flat(dx[0])] if dx else []
            for k in range(active.first, len(self.layers)):
                own = given.get(k + 1)
                if active.leaves[k]:
                    own = add(own, self._push(active, k, params, xs[k], dp[k], None))
                g.append(None if own is None else flat(own))
            jacobians = [a.transpose() for a in self._operators(active, params, xs)]
            read = [active.solved.index(k) for k in active.unknown]
            solved = solve_lower(self.solver, jacobians, g, read)
            t = dict(zip(active.solved, solved, strict=True))
            return dp, dx, [_shaped(t[k], xs[k]) for k in active.unknown]

        @jax.jit
        def backward(residuals, cts):
            params, xs = residuals
            ct_p, ct_x, ct_d = cts
            given = dict(zip(active.unknown, ct_d, strict=True))
            if active.x:
                given[0] = ct_x[0]
            g = [flat(given[k]) if k in given else None for k in active.solved]
            read = [
                t
                for t, k in enumerate(active.solved)
                if k in given or (k > 0 and active.leaves[k - 1])
            ]
            solved = solve_upper(self.solver, self._operators(active, params, xs), g, read)
            lambdas = {
                k: _shaped(v, xs[k])
                for k, v in zip(active.solved, solved, strict=True)
                if v is not None
            }
            for_params = []
            for k, (layer, own) in enumerate(zip(self.layers, ct_p, strict=True)):
                if own:
                    cts = layer.pullback(params[k], xs[k], xs[k + 1], lambdas[k + 1])
                    leaves = jax.tree.leaves(cts)
                    own = [a + leaves[j] for a, j in zip(own, active.leaves[k], strict=True)]
                for_params.append(own)
            for_x = [lambdas[0]] if active.x else []
            return for_params, for_x, [lambdas[k] for k in active.unknown]

        # Whether the solver's own program may be differentiated: it forms few products.
        through = self.solver.needs == "products" and not self.solver.rounds_vary
        return LinearSolve(matvec, forward, backward, through=through)

    def _operators(self, active, params, xs) -> list[Operator]:
        """The transposed Jacobians between the activations of the system, and no others."""
        ops = []
        for k in active.solved[:-1]:
            a = self.layers[k].adjoint_operator(params[k], xs[k], xs[k + 1])
            try:
                self.solver.check(type(a), ragged=True)
            except NotImplementedError as error:
                raise NotImplementedError(f"layers[{k}], {self.layers[k]}: {error}") from None
            ops.append(a)
        return ops

    def _push(self, active, k, params, x, dp, dx):
        """The tangent of layer k's output; ``None`` for an input tangent that is zero."""
        leaves, tree = jax.tree.flatten(params[k])
        kept = active.leaves[k]

        def apply(moving, x):
            full = list(leaves)
            for j, leaf in zip(kept, moving, strict=True):
                full[j] = leaf
            return self.layers[k].apply(jax.tree.unflatten(tree, full), x)

        at = [leaves[j] for j in kept]
        if dx is None:
            return jax.jvp(lambda moving: apply(moving, x), (at,), (dp,))[1]
        return jax.jvp(apply, (at, x), (dp, dx))[1]


def obstacle(params: Sequence[PyTree], x: Array) -> str | None:
    """What keeps a solver from derivatives of a stack, if anything does."""
    avals = [jax.typeof(leaf) for leaf in jax.tree.leaves((params, x))]
    return symbolic_size(avals) or explicit_sharding(avals)


def _shaped(v: Array, like: Array) -> Array:
    return v.reshape(like.shape).astype(like.dtype)
