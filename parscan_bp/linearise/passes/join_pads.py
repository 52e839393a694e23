"""Sums of parts padded with zeros, as the parts side by side.

The cotangent of what a step took apart, such as the gates in one product, is a sum of pads that
overlap nowhere. XLA on CPU makes that by adding zeros; side by side the same numbers are copied.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal

from parscan_bp.jaxprs.read import shape_of
from parscan_bp.jaxprs.replay import bind, interpret
from parscan_bp.linearise.linear_step import LinearStep
from parscan_bp.types import Array

MOST_PARTS = 16
"""Parts above which a sum stays one: a thousand single entries make no better program."""


@dataclasses.dataclass(frozen=True)
class _Parts:
    """Stretches of one axis of an array that is zero elsewhere, in their order.

    Attributes:
      axis: which.
      size: of the whole axis.
      parts: the first position of each, and its numbers.
    """

    axis: int
    size: int
    parts: tuple[tuple[int, Array], ...]

    @functools.cached_property
    def array(self) -> Array:
        if len(self.parts) == 1:
            ((start, part),) = self.parts
            around = (start, self.size - start - part.shape[self.axis], 0)
            config = [around if k == self.axis else (0, 0, 0) for k in range(part.ndim)]
            return lax.pad(part, jnp.zeros((), part.dtype), config)
        pieces, at = [], 0
        for start, part in self.parts:
            pieces += [*self._zeros(start - at, part), part]
            at = start + part.shape[self.axis]
        pieces += self._zeros(self.size - at, self.parts[0][1])
        return lax.concatenate(pieces, self.axis)

    def _zeros(self, count: int, like: Array) -> list[Array]:
        shape = [count if k == self.axis else n for k, n in enumerate(like.shape)]
        return [jnp.zeros_like(like, shape=shape)] if count else []

    def beside(self, other: _Parts) -> _Parts | None:
        """The sum of the two; ``None`` where they overlap."""
        if (self.axis, self.size) != (other.axis, other.size):
            return None
        parts = sorted((*self.parts, *other.parts), key=lambda p: p[0])
        ends = [start + part.shape[self.axis] for start, part in parts]
        if len(parts) > MOST_PARTS or any(
            a > b for a, (b, _) in zip(ends, parts[1:], strict=False)
        ):
            return None
        return _Parts(self.axis, self.size, tuple(parts))


def join_pads(step: LinearStep) -> LinearStep:
    """The same map by `joined_pads`."""
    return dataclasses.replace(step, apply=joined_pads(step.apply))


def joined_pads(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The same program, of which sums of disjoint pads are concatenations.

    Where a pad has infinities or NaN, so has the result, and nowhere else: there is nothing that a
    zero is added to.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jax import lax
      >>> f = lambda a, b: lax.pad(a, 0.0, [(0, 2, 0)]) + lax.pad(b, 0.0, [(1, 0, 0)])
      >>> joined = joined_pads(jax.make_jaxpr(f)(jnp.ones(1), jnp.ones(2)))
      >>> [eqn.primitive.name for eqn in joined.jaxpr.eqns]
      ['concatenate']
    """
    if sum(map(_is_pad, closed.jaxpr.eqns)) < 2:
        return closed
    run = lambda *values: [_made(v) for v in interpret(closed, values, _apply)]  # noqa: E731
    return jax.make_jaxpr(run)(*closed.in_avals)


def _apply(eqn: JaxprEqn, values: Sequence[Any]) -> Sequence[Any]:
    if _is_pad(eqn):
        return [_padded(eqn, _made(values[0]))]
    if eqn.primitive.name in ("add", "add_any"):
        a, b = values
        both = isinstance(a, _Parts) and isinstance(b, _Parts)
        joined = a.beside(b) if both else None
        if joined is not None:
            return [joined]
    return bind(eqn, [_made(v) for v in values])


def _made(value: Any) -> Any:
    return value.array if isinstance(value, _Parts) else value


def _is_pad(eqn: JaxprEqn) -> bool:
    """Whether an equation pads one axis with zeros, and takes nothing away."""
    if eqn.primitive.name != "pad" or not isinstance(eqn.invars[1], Literal):
        return False
    config = eqn.params["padding_config"]
    padded = [(lo, hi) for lo, hi, _ in config if lo or hi]
    plain = all(lo >= 0 and hi >= 0 and inside == 0 for lo, hi, inside in config)
    return plain and len(padded) == 1 and not np.any(eqn.invars[1].val)


def _padded(eqn: JaxprEqn, value: Array) -> _Parts:
    config = eqn.params["padding_config"]
    ((axis, start),) = [(k, lo) for k, (lo, hi, _) in enumerate(config) if lo or hi]
    return _Parts(axis, shape_of(eqn.outvars[0])[axis], ((start, value),))
