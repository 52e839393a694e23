"""The error of a late update, made up for once it is known."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
from jax import lax

from parscan_bp.arguments import set_numbers
from parscan_bp.pipeline.remedies.base import Remedy
from parscan_bp.types import Array, PyTree


class FeedbackState(NamedTuple):
    """What is kept of a stage.

    Attributes:
      slot: where the oldest of them is.
      made: (d, ...), the last d updates of the optimiser; 0 before the first.
    """

    slot: Array
    made: PyTree


@final
@dataclasses.dataclass(frozen=True)
class ErrorFeedback(Remedy):
    """Adds to an update the error that was made in the step in which its gradient was taken.

    In step n the weights should have moved by u(g(n)), and moved by what had arrived, u(g(n - d)).
    The difference is known d steps later, when g(n) arrives, and is then made up for:

        u <- u(g(n)) + strength (u(g(n)) - u(g(n - d)))

    where u(g(n - d)) is 0 if nothing had arrived; for d = 1 and strength 1 it is
    2 u(n) - u(n - 1). The last d updates are stored: d |theta| numbers more.

    Args:
      strength: at least 0.

    Raises:
      TypeError, ValueError: if it is no such number.

    Source: error feedback, Stich and Karimireddy, The Error-Feedback Framework (JMLR 2020); for
    pipelines with any optimiser, Zmushko et al., One-Step Gradient Delay is Not a Barrier (2026),
    of which we know the idea, not the formula: this one makes up for every error once.

    Example:
      >>> import jax.numpy as jnp
      >>> import parscan_bp as pb
      >>> remedy = pb.pipeline.ErrorFeedback()
      >>> state = remedy.init(1, jnp.zeros(()))
      >>> out = []
      >>> for u in (1.0, 1.0, 3.0):
      ...     update, state = remedy.adjust(jnp.array(u), state, 1)
      ...     out.append(float(update))
      >>> out
      [2.0, 1.0, 5.0]
    """

    strength: float = 1.0

    def __post_init__(self):
        set_numbers(self, strength=0)

    def init(self, delay, params):
        zeros = lambda p: jnp.zeros((delay, *jnp.shape(p)), jnp.result_type(p))  # noqa: E731
        return FeedbackState(jnp.zeros((), jnp.int32), jax.tree.map(zeros, params))

    def adjust(self, updates, state, delay):
        slot = state.slot

        def make_up(u: Array, made: Array) -> Any:
            before = lax.dynamic_index_in_dim(made, slot, keepdims=False)
            return (u + self.strength * (u - before)).astype(u.dtype)

        out = jax.tree.map(make_up, updates, state.made)
        put = lambda made, u: made.at[slot].set(u.astype(made.dtype))  # noqa: E731
        made = jax.tree.map(put, state.made, updates)
        return out, FeedbackState((slot + 1) % delay, made)
