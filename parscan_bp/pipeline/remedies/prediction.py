"""Gradients taken where the weights will be when they are used."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple, final

import jax
import jax.numpy as jnp

from parscan_bp.arguments import described
from parscan_bp.pipeline.remedies.base import Remedy
from parscan_bp.pipeline.stale_state import Stage, StaleState
from parscan_bp.types import PyTree


class PredictionState(NamedTuple):
    """What is kept of a stage.

    Attributes:
      updates: the last ones.
    """

    updates: PyTree


@final
@dataclasses.dataclass(frozen=True)
class WeightPrediction(Remedy):
    """Gradients are taken where the weights will be when they are used.

        w + d u,    u the last update of the stage

    `run` takes them there. For `stale` it keeps u, and changes nothing by itself, as an optimiser
    does not take the gradient: `stale_params` is the place. It stands after remedies that change
    updates, and costs |theta| numbers; in `run` twice as many, as the prediction is held, too.

    Source: Chen, Yang, Cheng, SpecTrain (2018), for SGD with momentum, whose last update is its
    smoothed gradient; Guan et al., XPipe (2019), for Adam.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> import parscan_bp as pb
      >>> optimiser = pb.pipeline.stale(
      ...     optax.sgd(0.5), 1, remedies=[pb.pipeline.WeightPrediction()])
      >>> params = jnp.zeros(())
      >>> state = optimiser.init(params)
      >>> for _ in range(2):
      ...     gradient = pb.pipeline.stale_params(state, params) - 1.0
      ...     updates, state = optimiser.update(gradient, state, params)
      ...     params = params + updates
      >>> float(params), float(pb.pipeline.stale_params(state, params))
      (0.5, 1.0)
    """

    def init(self, delay, params):
        return PredictionState(jax.tree.map(jnp.zeros_like, params))

    def adjust(self, updates, state, delay):
        kept = jax.tree.map(lambda u, a: u.astype(a.dtype), updates, state.updates)
        return updates, PredictionState(kept)

    def predicted(self, params, state, delay):
        return jax.tree.map(lambda p, u: (p + delay * u).astype(p.dtype), params, state.updates)


def stale_params(state: StaleState, params: PyTree) -> PyTree:
    """Where the weights will be when a gradient that is taken now is used: take it there.

        w_k + d_k u_k,    u_k the last update of stage k

    Args:
      state: of `stale` with `WeightPrediction` among its remedies.
      params: now.

    Returns:
      Parameters of the same shapes. Those of a stage that is not late are what they were.

    Raises:
      TypeError: if ``state`` is no `StaleState`.
      ValueError: if a stage that is late has no prediction.

    Source: as of `WeightPrediction`, where there is an example, too.
    """
    if not isinstance(state, StaleState):
        raise TypeError(f"state: got {described(state)}; that of stale(...).init is wanted")
    is_stage = lambda node: isinstance(node, Stage)  # noqa: E731
    return jax.tree.map(_predicted, state.stages, params, is_leaf=is_stage)


def _predicted(stage: Stage, params: PyTree) -> PyTree:
    waiting = jax.tree.leaves(stage.queue)
    if not waiting:
        return params
    found = [own for own in stage.remedies if isinstance(own, PredictionState)]
    if not found:
        raise ValueError(
            "state: a stage that is late keeps no update to predict by; "
            "stale(..., remedies=[WeightPrediction()]) is wanted"
        )
    delay = waiting[0].shape[0]
    return WeightPrediction().predicted(params, found[-1], delay)
