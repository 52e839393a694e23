"""The augmented system of a stack: tangents of its activations, and of what causes them.

Its unknowns are the tangents of the active parameters, of the input if it is active, and of the
activations, with rows

    dp = b_p,   dx_0 = b_0,   dx_k - J_k dx_{k-1} - f_p dp_k = b_k.

Forward-mode solves it from the input, reverse-mode its transpose from the output; the
parameter cotangents follow from the cotangents of the activations, layer by layer.
"""

from __future__ import annotations

import dataclasses

import jax

from parscan_bp.layers import Layer
from parscan_bp.layers.base import flat
from parscan_bp.layers.stack import named
from parscan_bp.layers.stated import stated_operator, stated_pullback
from parscan_bp.operators import Operator
from parscan_bp.primitives.linear_solve import LinearSolve
from parscan_bp.primitives.zeros import empty_of, tied_zeros
from parscan_bp.solve import solve_lower, solve_upper
from parscan_bp.solvers import Solver
from parscan_bp.trees import add
from parscan_bp.types import Array


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
class Augmented:
    """The system of a stack for a choice of active inputs.

    Residuals are ``(params, xs)``, all activations; the right-hand side is ``(dp, dx, d)``, lists
    of the active parameters' leaves for each layer, of the input if it is active, and of the
    unknown activations.

    Attributes:
      layers: the layers.
      solver: what solves the bi-diagonal system.
      active: what is differentiated.
      is_own: whether the layers are after any derivative what they were.
    """

    layers: tuple[Layer, ...]
    solver: Solver
    active: ActiveLayers
    is_own: bool = True

    def solve(self) -> LinearSolve:
        """Its solution, with the transposed one."""
        # Whether the solver's own program may be differentiated: it forms few products.
        through = self.solver.differentiable
        matvec, forward, backward = map(jax.jit, (self._matvec, self._forward, self._backward))
        own = lambda: self.is_own  # noqa: E731
        return LinearSolve(matvec, forward, backward, through=through, is_own=own)

    def _matvec(self, residuals, u):
        params, xs = residuals
        dp, dx, d = u
        known, t, rows = dict(zip(self.active.unknown, d, strict=True)), dx[0] if dx else None, []
        for k in range(self.active.first, len(self.layers)):
            pushed = self._push(k, params, xs[k], dp[k], t)
            t = known.get(k + 1, pushed)
            if k + 1 in known:
                rows.append(t - pushed)
        # Every row depends on every unknown and every residual, or a derivative of the
        # solve would have a right-hand side that is not linear in some leaf.
        tie = empty_of(u) * empty_of(residuals)
        return jax.tree.map(lambda row: row + tied_zeros(tie, row), (dp, dx, rows))

    def _forward(self, residuals, b):
        params, xs = residuals
        dp, dx, d = b
        given = dict(zip(self.active.unknown, d, strict=True))
        g: list[Array | None] = [flat(dx[0])] if dx else []
        for k in range(self.active.first, len(self.layers)):
            own = given.get(k + 1)
            if self.active.leaves[k]:
                own = add(own, self._push(k, params, xs[k], dp[k], None))
            g.append(None if own is None else flat(own))
        jacobians = [a.transpose() for a in self.operators(params, xs)]
        read = [self.active.solved.index(k) for k in self.active.unknown]
        solved = solve_lower(self.solver, jacobians, g, read)
        t = dict(zip(self.active.solved, solved, strict=True))
        return dp, dx, [_shaped(t[k], xs[k]) for k in self.active.unknown]

    def _backward(self, residuals, cts):
        params, xs = residuals
        ct_p, ct_x, ct_d = cts
        given = dict(zip(self.active.unknown, ct_d, strict=True))
        if self.active.x:
            given[0] = ct_x[0]
        g = [flat(given[k]) if k in given else None for k in self.active.solved]
        read = [
            t
            for t, k in enumerate(self.active.solved)
            if k in given or (k > 0 and self.active.leaves[k - 1])
        ]
        solved = solve_upper(self.solver, self.operators(params, xs), g, read)
        lambdas = {
            k: _shaped(v, xs[k])
            for k, v in zip(self.active.solved, solved, strict=True)
            if v is not None
        }
        for_params = []
        for k, (layer, own) in enumerate(zip(self.layers, ct_p, strict=True)):
            if own:
                at = params[k], xs[k], xs[k + 1], lambdas[k + 1]
                leaves = stated_pullback(named(k, layer), layer, *at)
                own = [a + leaves[j] for a, j in zip(own, self.active.leaves[k], strict=True)]
            for_params.append(own)
        for_x = [lambdas[0]] if self.active.x else []
        return for_params, for_x, [lambdas[k] for k in self.active.unknown]

    def operators(self, params, xs) -> list[Operator]:
        """The transposed Jacobians between the activations of the system, and no others."""
        ops = []
        for k in self.active.solved[:-1]:
            layer = self.layers[k]
            a = stated_operator(named(k, layer), layer, params[k], xs[k], xs[k + 1])
            try:
                self.solver.check(type(a), ragged=True)
            except NotImplementedError as error:
                raise NotImplementedError(f"{named(k, layer)}: {error}") from None
            ops.append(a)
        return ops

    def _push(self, k, params, x, dp, dx):
        """The tangent of layer k's output; ``None`` for an input tangent that is zero."""
        leaves, tree = jax.tree.flatten(params[k])
        kept = self.active.leaves[k]

        def apply(moving, x):
            full = list(leaves)
            for j, leaf in zip(kept, moving, strict=True):
                full[j] = leaf
            return self.layers[k].apply(jax.tree.unflatten(tree, full), x)

        at = [leaves[j] for j in kept]
        if dx is None:
            return jax.jvp(lambda moving: apply(moving, x), (at,), (dp,))[1]
        return jax.jvp(apply, (at, x), (dp, dx))[1]


def _shaped(v: Array, like: Array) -> Array:
    return v.reshape(like.shape).astype(like.dtype)
