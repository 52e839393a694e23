"""The differentiation rule of a stack of layers: one linear solve, for every order and mode.

As for the scan, the tangent of the stack is one linear solve on the augmented system (`augmented`).
The value of the stack needs the last tangent only, and then the middle ones are no unknowns: the
rule exists in both forms, the whole one for the derivatives of its own residuals.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
from jax import lax
from jax.custom_derivatives import SymbolicZero

from parscan_bp.chain.augmented import ActiveLayers, Augmented
from parscan_bp.chain.later import Activations, activations_beside, all_that_move
from parscan_bp.jaxprs.obstacles import explicit_sharding, symbolic_size
from parscan_bp.jaxprs.replay import vary_alike, varying_as
from parscan_bp.layers import Layer
from parscan_bp.layers.base import flat
from parscan_bp.layers.stack import batched_activations
from parscan_bp.primitives.with_rule import WithRule
from parscan_bp.primitives.zeros import empty_of, tied_zeros, zeros_of
from parscan_bp.report import cotangents, report_on
from parscan_bp.solvers import Solver, check_nothing_in_the_way
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
            check_nothing_in_the_way(obstacle(*primals), self.solver)
            active = _active(tangents, whole=False)
            xs = self._beside(primals, active)
            return xs[-1], self._tangents(primals, tangents, xs, active)[-1]

        return WithRule(value, jvp)

    @functools.cached_property
    def _activations(self):
        """[x_0, ..., x_n], which derivatives need."""

        def run(params, x):
            return batched_activations(self.layers, params, x)

        def jvp(primals, tangents):
            active = _active(tangents, whole=True)
            xs = self._beside(primals, active)
            return xs, self._tangents(primals, tangents, xs, active)

        return WithRule(run, jvp)

    def _beside(self, primals, active: ActiveLayers) -> list[Array]:
        """[x_0, ..., x_n] as they are beside the tangents."""
        made = None
        if not self._is_own(primals):
            made = self._later(primals, (active.leaves, active.x))
        return (made or self._activations)(*primals)

    def _is_own(self, primals) -> bool:
        """Whether the layers are after any derivative what they were."""
        return self._later(primals, (all_that_move(primals[0]), True)) is None

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

    def _later(self, primals, moving) -> Activations | None:
        """See `activations_beside`; once for all primals of the same types."""
        types, tree = jax.tree.flatten(jax.tree.map(jax.typeof, primals))
        key = (moving, tree, *types)
        if key not in self._made:
            params, x = jax.tree.unflatten(tree, types)
            self._made[key] = activations_beside(self.layers, params, x, *moving)
        return self._made[key]

    @functools.cached_property
    def _made(self) -> dict[Any, Activations | None]:
        return {}

    def _tangents(self, primals, tangents, xs, active: ActiveLayers):
        """Tangents of the activations; where they are not unknowns, symbolic zeros."""
        params, _ = primals
        t_params, t_x = tangents
        out = zeros_of(xs)
        if not active.x and not any(active.leaves):
            return out
        pairs = zip(map(jax.tree.leaves, t_params), active.leaves, strict=True)
        dp = [[own[j] for j in kept] for own, kept in pairs]
        dx = [t_x] if active.x else []
        # Of a tangent that loses its weak type here, the cotangent has it again.
        dp, dx = jax.tree.map(lambda t: lax.convert_element_type(t, t.dtype), (dp, dx))
        (params, varied), dp, dx = vary_alike(((params, xs), dp, dx))
        tie = empty_of((dp, dx))
        zeros = [tied_zeros(tie, varied[k]) for k in active.unknown]
        *_, d = self.solve(active, self._is_own(primals))((params, varied), (dp, dx, zeros))
        for k, t in zip(active.unknown, d, strict=True):
            out[k] = varying_as(t, xs[k])
        if active.x:
            out[0] = t_x
        return out

    @functools.cached_property
    def solve(self):
        """Function from a choice of active inputs to its augmented solve, see `Augmented`."""
        return functools.cache(lambda *how: Augmented(self.layers, self.solver, *how).solve())


def _active(tangents, *, whole: bool) -> ActiveLayers:
    params, x = tangents
    moving = tuple(
        tuple(j for j, t in enumerate(jax.tree.leaves(own)) if not isinstance(t, SymbolicZero))
        for own in params
    )
    return ActiveLayers(moving, not isinstance(x, SymbolicZero), whole)


def obstacle(params: Sequence[PyTree], x: Array) -> str | None:
    """What keeps a solver from derivatives of a stack, if anything does."""
    avals = [jax.typeof(leaf) for leaf in jax.tree.leaves((params, x))]
    return symbolic_size(avals) or explicit_sharding(avals)
