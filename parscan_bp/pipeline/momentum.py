"""Stochastic unified momentum: heavy ball, Nesterov, and between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from parscan_bp.arguments import as_number
from parscan_bp.types import PyTree


class Transformation(NamedTuple):
    """A pair with the contract of `optax.GradientTransformation`, which optax takes for one."""

    init: Callable[..., Any]
    update: Callable[..., tuple[Any, Any]]


class UnifiedMomentumState(NamedTuple):
    """What is kept from step to step.

    Attributes:
      velocity: y^s(n) - y^s(n - 1).
      gradient: of the step before.
    """

    velocity: PyTree
    gradient: PyTree


def unified_momentum(learning_rate: float, momentum: float, s: float) -> Transformation:
    """SGD with stochastic unified momentum (SUM), in which both analyses of DSP are done.

        y(n + 1)   = w(n) - rate g(n)
        y^s(n + 1) = w(n) - s rate g(n)
        w(n + 1)   = y(n + 1) + momentum (y^s(n + 1) - y^s(n)),    y^s(0) = w(0)

    s = 0 is the heavy ball, s = 1 Nesterov's accelerated gradient, s = 1 / (1 - momentum) plain
    SGD with the rate rate / (1 - momentum).

    Args:
      learning_rate: rate, the same in all steps.
      momentum: in [0, 1).
      s: which momentum, at least 0.

    Returns:
      A pair (init, update) as of optax.

    Raises:
      TypeError, ValueError: if one is no such number.

    Source: DSP (Xu, Huo, Huang), eq. 3; Yang, Lin, Li, 2016.

    Example:
      >>> import jax.numpy as jnp
      >>> import parscan_bp as pb
      >>> optimiser = pb.pipeline.unified_momentum(0.5, momentum=0.5, s=1.0)
      >>> updates, state = optimiser.update(jnp.ones(()), optimiser.init(jnp.ones(())))
      >>> float(updates), float(optimiser.update(jnp.ones(()), state)[0])
      (-0.75, -0.875)
    """
    learning_rate = as_number("learning_rate", learning_rate)
    momentum, s = as_number("momentum", momentum), as_number("s", s)
    if momentum >= 1:
        raise ValueError(f"momentum: got {momentum}; a number in [0, 1) is wanted")

    def init(params):
        zeros = jax.tree.map(jnp.zeros_like, params)
        return UnifiedMomentumState(zeros, zeros)

    def update(updates, state, params=None):
        del params
        # y^s(n + 1) - y^s(n), where w(n) - w(n - 1) is what the step before did.
        velocity = jax.tree.map(
            lambda v, before, g: momentum * v - learning_rate * ((1 - s) * before + s * g),
            state.velocity,
            state.gradient,
            updates,
        )
        steps = jax.tree.map(lambda v, g: momentum * v - learning_rate * g, velocity, updates)
        return steps, UnifiedMomentumState(velocity, updates)

    return Transformation(init, update)
