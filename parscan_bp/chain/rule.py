"""The differentiation rule of a stack of layers: one linear solve, for every order and mode.

As for the scan, the tangent of the stack is one linear solve on the augmented system (`augmented`).
The value of the stack needs the last tangent only, and then the middle ones are no unknowns: the
rule exists in both forms, the whole one for the derivatives of its own residuals.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import jax
from jax import lax
from jax.custom_derivatives import SymbolicZero

from parscan_bp.chain.augmented import ActiveLayers, Augmented
from parscan_bp.jaxprs.obstacles import check_no_obstacle, explicit_sharding, symbolic_size
from parscan_bp.jaxprs.replay import vary_alike, varying_as
from parscan_bp.layers import Layer
from parscan_bp.layers.base import flat
from parscan_bp.layers.stack import batched_activations
from parscan_bp.primitives.with_rule import WithRule
from parscan_bp.primitives.zeros import empty_of, tied_zeros, zeros_of
from parscan_bp.report import cotangents, report_on
from parscan_bp.solvers import Solver
from parscan_bp.solvers.results import solved_ragged_observed
from parscan_bp.system import Ragged
from parscan_bp.types import Array, PyTree


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
        return jax.make_jaxpr(lambda params, x: batched_activations(self.layers, params, x)[-1])

    @functools.cached_property
    def _value(self):
        def value(params, x):
            return batched_activations(self.layers, params, x)[-1]

        def jvp(primals, tangents):
            check_no_obstacle(obstacle(*primals), self.solver)
            xs = self._activations(*primals)
            return xs[-1], self._tangents(primals, tangents, xs, whole=False)[-1]

        return WithRule(value, jvp)

    @functools.cached_property
    def _activations(self):
        """[x_0, ..., x_n], which derivatives need."""

        def run(params, x):
            return batched_activations(self.layers, params, x)

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
            xs = batched_activations(self.layers, params, x)
            leaves = [tuple(range(len(jax.tree.leaves(own)))) for own in params]
            active = ActiveLayers(tuple(leaves), not any(leaves), whole=True)
            operators = Augmented(self.layers, self.solver, active).operators(params, xs)
            system = Ragged(operators, cotangents([flat(xs[k]) for k in active.solved]))
            solution, rounds = solved_ragged_observed(self.solver, system)
            return report_on(system, solution, xs[-1], rounds=rounds)

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
        (params, varied), dp, dx = vary_alike(((params, xs), dp, dx))
        tie = empty_of((dp, dx))
        zeros = [tied_zeros(tie, varied[k]) for k in active.unknown]
        *_, d = self.solve(active)((params, varied), (dp, dx, zeros))
        for k, t in zip(active.unknown, d, strict=True):
            out[k] = varying_as(t, xs[k])
        if active.x:
            out[0] = t_x
        return out

    @functools.cached_property
    def solve(self):
        """Function from a choice of active inputs to its augmented solve."""
        return functools.cache(lambda active: Augmented(self.layers, self.solver, active).solve())


def obstacle(params: Sequence[PyTree], x: Array) -> str | None:
    """What keeps a solver from derivatives of a stack, if anything does."""
    avals = [jax.typeof(leaf) for leaf in jax.tree.leaves((params, x))]
    return symbolic_size(avals) or explicit_sharding(avals)
