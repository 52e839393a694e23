"""Smaller steps where gradients are later."""

from __future__ import annotations

import dataclasses
from typing import final

import jax
import jax.numpy as jnp

from parscan_bp.arguments import set_ints, set_numbers
from parscan_bp.pipeline.remedies.base import Remedy


@final
@dataclasses.dataclass(frozen=True)
class LearningRateByStaleness(Remedy):
    """Divides the updates of a stage by d^power, d how many steps its gradients are late.

        u <- u / d^a(n),    a(n) = power                          without ``anneal``
                            a(n) = power (1 - min(n / anneal, 1))    with it

    Args:
      power: at least 0; 1 is both papers'.
      anneal: updates of a stage after which the division has faded out; ``None`` keeps it.

    Raises:
      TypeError, ValueError: if one is no such number.

    Source: Zhang, Gupta, Lian, Liu, Staleness-aware Async-SGD (IJCAI 2016), eq. 6; annealed, Yang
    et al., PipeMare (MLSys 2021), technique 1.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> import parscan_bp as pb
      >>> remedy = pb.pipeline.LearningRateByStaleness()
      >>> float(remedy.adjust(jnp.ones(()), remedy.init(4, jnp.ones(())), 4)[0])
      0.25
    """

    power: float = 1.0
    anneal: int | None = None

    def __post_init__(self):
        set_numbers(self, power=0)
        set_ints(self, ("anneal",), anneal=1)

    def init(self, delay, params):
        return () if self.anneal is None else jnp.zeros((), jnp.int32)

    def adjust(self, updates, state, delay):
        if self.anneal is None:
            return jax.tree.map(lambda u: (delay**-self.power * u).astype(u.dtype), updates), state

        def divided(u):
            real = jnp.promote_types(jnp.finfo(u.dtype).dtype, jnp.float32)
            left = 1 - state.astype(real) / self.anneal
            return (jnp.asarray(delay, real) ** (-self.power * left) * u).astype(u.dtype)

        return jax.tree.map(divided, updates), jnp.minimum(state + 1, self.anneal)
