"""Late gradients carried on to today's weights by a guess of the Hessian."""

from __future__ import annotations

import dataclasses
from typing import final

import jax
import jax.numpy as jnp

from parscan_bp.arguments import set_numbers
from parscan_bp.pipeline.remedies.base import Remedy


@final
@dataclasses.dataclass(frozen=True)
class DelayCompensation(Remedy):
    """Adds to a late gradient the first term of its Taylor series, with g g^T for the Hessian.

        g <- g + l g * g * (w_now - w_then)

    entry by entry, w_then the weights at which g was taken. They are stored: d |theta| numbers
    more. With ``decay`` the strength follows the size of the gradients,

        l = strength / sqrt(v + 1e-7),    v <- decay v + (1 - decay) g * g.

    Args:
      strength: lambda, at least 0.
      decay: of the mean of squares, in [0, 1); ``None`` is a constant l = strength.

    Raises:
      TypeError, ValueError: if one is no such number.

    Source: Zheng et al., Asynchronous SGD with Delay Compensation (ICML 2017), eq. 10, and the
    adaptive form of its section 5.

    Example:
      >>> import jax.numpy as jnp
      >>> import parscan_bp as pb
      >>> remedy = pb.pipeline.DelayCompensation(strength=0.5)
      >>> float(remedy.correct(jnp.array(2.0), jnp.array(1.0), jnp.array(0.0), ())[0])
      0.0
    """

    strength: float
    decay: float | None = None

    def __post_init__(self):
        set_numbers(self, ("decay",), strength=0, decay=0)
        if self.decay is not None and self.decay >= 1:
            raise ValueError(f"decay: got {self.decay}; a number in [0, 1) is wanted")

    def init(self, delay, params):
        return () if self.decay is None else jax.tree.map(jnp.zeros_like, params)

    def stored(self, params):
        return params

    def correct(self, gradient, stored, params, state):
        if self.decay is None:
            return jax.tree.map(_carried(self.strength), gradient, params, stored), state
        decay = self.decay
        state = jax.tree.map(lambda v, g: decay * v + (1 - decay) * g * g, state, gradient)
        strength = jax.tree.map(lambda v: self.strength * jax.lax.rsqrt(v + 1e-7), state)
        carried = lambda g, now, then, l: _carried(l)(g, now, then)  # noqa: E731
        return jax.tree.map(carried, gradient, params, stored, strength), state


def _carried(strength):
    return lambda g, now, then: (g + strength * g * g * (now - then)).astype(g.dtype)
