"""Dropout with a given mask."""

from __future__ import annotations

import dataclasses
import numbers
from typing import final

import jax.numpy as jnp

from parscan_bp.arguments import described, set_numbers
from parscan_bp.layers.base import Layer, flat, no_cotangent
from parscan_bp.operators import Diagonal


@final
@dataclasses.dataclass(frozen=True)
class Dropout(Layer):
    """y = x / (1 - rate) where the mask is true, 0 elsewhere.

    The layer's parameter is the mask: bools (batch, *features), or (1, *features) for one that
    the batch shares. Drawing it is the caller's part, so that both passes see the same.

    Args:
      rate: share of entries that are dropped, in [0, 1).

    Raises:
      ValueError: if ``rate`` is not in [0, 1); by `apply`, if the mask does not fit.
      TypeError: if it is no number; by `apply`, if the mask is not of bools.

    Source: Srivastava et al., 2014, in the form that scales in training.

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.layers import Dropout
      >>> Dropout(0.5).apply(jnp.array([[True, False]]), jnp.ones((1, 2))).tolist()
      [[2.0, 0.0]]
    """

    rate: float

    def __post_init__(self):
        if isinstance(self.rate, bool) or not isinstance(self.rate, numbers.Real):
            raise TypeError(f"rate: got {described(self.rate)}; a number in [0, 1) is wanted")
        if not 0 <= self.rate < 1:
            raise ValueError(f"rate: got {self.rate}; a number in [0, 1) is wanted")
        set_numbers(self, rate=0)

    def apply(self, params, x):
        if not hasattr(params, "dtype") or params.dtype.kind != "b":
            raise TypeError(
                f"mask: got {described(params)}; an array of bools is wanted as the parameter"
            )
        if params.shape[1:] != x.shape[1:] or params.shape[0] not in (1, x.shape[0]):
            raise ValueError(
                f"mask: got shape {tuple(params.shape)} for x of shape {tuple(x.shape)}; the same "
                "is wanted, or a leading axis of 1"
            )
        return jnp.where(params, x / (1 - self.rate), 0)

    def adjoint_operator(self, params, x, y):
        slope = jnp.where(params, jnp.asarray(1 / (1 - self.rate), x.dtype), 0)
        return Diagonal(flat(slope)[0] if len(slope) == 1 else flat(slope))

    def pullback(self, params, x, y, ct):
        return no_cotangent(params)
