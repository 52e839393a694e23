"""Correction rounds over layers of different sizes: the chunks are branches of one program."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from parscan_bp.solvers.seams import anywhere, are_finite, cancels, matters, select
from parscan_bp.solvers.stretches import sweep_layers
from parscan_bp.system import Ragged
from parscan_bp.types import Array


@dataclasses.dataclass(frozen=True)
class LayerChunks:
    """The layers of a ragged system as chunks, which are branches of one program.

    Chunk k has the operators from ``edges[k + 1]`` to ``edges[k]``; the first one is that of the
    last layers. A correction is that of the lambda at its edge.

    Attributes:
      system: the system, every cotangent an array of its lambda's type.
      edges: from the number of layers down to 0.
    """

    system: Ragged
    edges: Sequence[int]

    @classmethod
    def of(cls, system: Ragged, count: int) -> LayerChunks:
        n = system.length
        types = jax.eval_shape(lambda: sweep_layers(system.operators, system.g))
        g = [
            jnp.broadcast_to(jnp.zeros_like(a) if v is None else v.astype(a.dtype), a.shape)
            for a, v in zip(types, system.g, strict=True)
        ]
        edges = [n - n * k // count for k in range(count + 1)]
        return cls(dataclasses.replace(system, g=g), edges)

    def _lambdas(self, k: int) -> slice:
        """Where the lambdas of a chunk are, the one at its upper edge being another chunk's."""
        return slice(self.edges[k + 1], self.edges[k] + (k == 0))

    def corrected(self, most: int) -> tuple[list[Array], Array, list[Array]]:
        """Which chunks after the first are not settled after ``most`` rounds at most; the number of
        rounds; and the lambdas."""
        operators, g, later = self.system.operators, self.system.g, range(1, len(self.edges) - 1)
        lambdas: list[Array] = []
        for k in (*reversed(later), 0):
            own = self._lambdas(k)
            lambdas += sweep_layers(operators[own.start : own.stop - 1], g[own])
        if not later:
            return [], jnp.zeros((), jnp.int32), lambdas
        corrections = [lambdas[self.edges[k]] for k in later]
        pending = [matters(c, c, 0) for c in corrections]
        lost = [jnp.zeros_like(flag) for flag in pending]

        def wanted(number, corrections, pending, lost, _):
            usable = are_finite(corrections, 0) & ~_any(lost)
            return _any(pending) & (number <= most) & usable

        def visit(carry):
            # An entry of a mapped axis that is done stays as it is, to the last bit.
            number, corrections, pending, lost, lambdas = carry
            goes = wanted(*carry)
            active, lambdas = [flag & goes for flag in pending], list(lambdas)
            left, cancelled = [], []
            for k, flag, correction in zip(later, active, corrections, strict=True):
                own = self._lambdas(k)
                old = lambdas[own]
                lambdas[own], out = self._push(k, flag, correction, old)
                before, now = ([v[None] for v in values] for values in (old, lambdas[own]))
                cancelled.append(cancels(before, now, 0))
                left.append(out)
            lost = [a | b for a, b in zip(lost, cancelled, strict=True)]
            # The first chunk lacked nothing, and the last one hands nothing on.
            left = [jnp.zeros_like(corrections[0]), *left[:-1]]
            handed = [jnp.zeros_like(goes), *active[:-1]]
            still = [
                flag & matters(c, lambdas[self.edges[k]], 0)
                for k, flag, c in zip(later, handed, left, strict=True)
            ]
            new = number + _any(still), left, still
            return *select(goes, new, (number, corrections, pending)), lost, lambdas

        number = _any(pending).astype(jnp.int32)
        carry = number, corrections, pending, lost, lambdas
        number, _, pending, lost, lambdas = lax.while_loop(
            lambda carry: anywhere(wanted(*carry)), visit, carry
        )
        return [a | b for a, b in zip(pending, lost, strict=True)], number, lambdas

    def _push(self, k: int, active: Array, correction: Array, old: list[Array]):
        """The lambdas of a chunk with a correction added, and that of the last one; if active."""
        operators = self.system.operators[self._lambdas(k)]

        def push(correction, old):
            new = []
            for a, v in zip(reversed(operators), reversed(old), strict=True):
                correction = jnp.broadcast_to(a.matvec(correction), v.shape).astype(v.dtype)
                new.append(v + correction)
            return new[::-1], correction

        def keep(correction, old):
            return old, jnp.zeros_like(old[0])

        made = lax.cond(anywhere(active), push, keep, correction, old)
        return select(active, made, keep(correction, old))

    def swept_on(
        self, unsettled: Sequence[Array], lambdas: list[Array]
    ) -> tuple[list[Array], Array]:
        """Sequentially the chunks from the first one that is not settled; whether there is one."""
        again = jnp.zeros((), bool)
        for k, flag in enumerate(unsettled, 1):
            own = self._lambdas(k)
            again = again | flag | ~are_finite(lambdas[own], 0)
            operators, g = self.system.operators[own], self.system.g[own]

            def sweep(above, _, operators=operators, g=g):
                return sweep_layers(operators, [*g, above])[:-1]

            above, old = lambdas[self.edges[k]], lambdas[own]
            new = lax.cond(anywhere(again), sweep, lambda _, old: old, above, old)
            lambdas[own] = select(again, new, old)
        return lambdas, again


def _any(flags: Sequence[Array]) -> Array:
    return functools.reduce(jnp.logical_or, flags)
