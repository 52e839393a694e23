"""Batch norm with given statistics, layer norm, softmax."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, final

import jax
import jax.numpy as jnp

from parscan_bp.arguments import check_bool, set_numbers
from parscan_bp.layers.base import (
    Layer,
    check_channels,
    check_params,
    over_features,
    per_channel,
)
from parscan_bp.operators import Diagonal, LowRankUpdate
from parscan_bp.types import Array


@final
@dataclasses.dataclass(frozen=True)
class BatchNorm(Layer):
    """y = (x - mean) scale / sqrt(var + epsilon) + bias, by channel, with given statistics.

    Parameters are ``{"scale", "bias", "mean", "var"}``, each (channels,). The transposed Jacobian
    is a diagonal that the batch shares. In training mode the statistics are those of the batch:
    its entries then depend on each other, and no operator per entry exists.

    Args:
      epsilon: added to the variance.
      training: has to be ``False``.

    Raises:
      NotImplementedError: if ``training`` is true.
      TypeError, ValueError: if ``epsilon`` is no number of at least 0, or ``training`` no bool.
      ValueError: by `apply`, if sizes do not fit.

    Source: Ioffe and Szegedy, 2015, Algorithm 2 (inference).

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from parscan_bp.layers import BatchNorm
      >>> layer = BatchNorm(epsilon=0.0)
      >>> params = layer.init(jax.random.key(0), (2,)) | {"var": jnp.array([1.0, 4.0])}
      >>> layer.adjoint_operator(params, jnp.ones((1, 2)), None).diagonal.tolist()
      [1.0, 0.5]
    """

    epsilon: float = 1e-5
    training: bool = False

    places_apart: ClassVar = True

    def __post_init__(self):
        set_numbers(self, epsilon=0)
        check_bool("training", self.training)
        if self.training:
            raise NotImplementedError(
                "training: batch norm with the batch's own statistics couples the entries of the "
                "batch, so that no Jacobian per entry exists; use given statistics "
                "(training=False), or LayerNorm"
            )

    def init(self, key, features, dtype=float):
        zeros, ones = jnp.zeros(features[-1], dtype), jnp.ones(features[-1], dtype)
        return {"scale": ones, "bias": zeros, "mean": zeros, "var": ones}

    def apply(self, params, x):
        check_params(self, params, ("scale", "bias", "mean", "var"))
        for name, value in params.items():
            check_channels(f"BatchNorm with {name} of shape {tuple(value.shape)}", value.size, x)
        return (x - params["mean"]) * self._factor(params) + params["bias"]

    def _factor(self, params):
        return params["scale"] * self._inverse(params)

    def _inverse(self, params):
        return jax.lax.rsqrt(params["var"] + self.epsilon)

    def adjoint_operator(self, params, x, y):
        return Diagonal(per_channel(self._factor(params), x))

    def pullback(self, params, x, y, ct):
        inverse, centred = self._inverse(params), x - params["mean"]
        total, product = over_features(ct), over_features(ct * centred)
        cts = {
            "scale": product * inverse,
            "bias": total,
            "mean": -total * self._factor(params),
            "var": product * params["scale"] * inverse**3 / -2,
        }
        return {name: value.astype(params[name].dtype) for name, value in cts.items()}


@final
@dataclasses.dataclass(frozen=True)
class LayerNorm(Layer):
    """y = (x - m) s scale + bias over the last axis: m its mean, s = 1 / sqrt(var + epsilon).

    Parameters are ``{"scale", "bias"}``, each (channels,). With z = (x - m) s,

        (dy/dx)^T = s (I - 1 1^T / n - z z^T / n) diag(scale):

    a diagonal and a part of rank two for each place, a `LowRankUpdate`.

    Args:
      epsilon: added to the variance.

    Raises:
      TypeError, ValueError: if ``epsilon`` is no number of at least 0.
      ValueError: by `apply`, if sizes do not fit.

    Source: Ba, Kiros, Hinton, 2016, eq. 3.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from parscan_bp.layers import LayerNorm
      >>> layer = LayerNorm(epsilon=0.0)
      >>> params = layer.init(jax.random.key(0), (2,))
      >>> layer.apply(params, jnp.array([[1.0, 3.0]])).tolist()
      [[-1.0, 1.0]]
    """

    epsilon: float = 1e-6

    places_apart: ClassVar = True

    def __post_init__(self):
        set_numbers(self, epsilon=0)

    def init(self, key, features, dtype=float):
        return {"scale": jnp.ones(features[-1], dtype), "bias": jnp.zeros(features[-1], dtype)}

    def apply(self, params, x):
        check_params(self, params, ("scale", "bias"))
        for name, value in params.items():
            check_channels(f"LayerNorm with {name} of shape {tuple(value.shape)}", value.size, x)
        return self._normalised(x)[0] * params["scale"] + params["bias"]

    def _normalised(self, x: Array) -> tuple[Array, Array]:
        """z and s."""
        centred = x - x.mean(-1, keepdims=True)
        inverse = jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + self.epsilon)
        return centred * inverse, inverse

    def adjoint_operator(self, params, x, y):
        z, s = self._normalised(_places(x))
        scale, n = params["scale"], x.shape[-1]
        left = jnp.stack([jnp.broadcast_to(-s / n, z.shape), -s / n * z], axis=-1)
        right = jnp.stack([jnp.broadcast_to(scale, z.shape), scale * z], axis=-1)
        return LowRankUpdate(s * scale, left, right)

    def pullback(self, params, x, y, ct):
        cts = {"scale": over_features(ct * self._normalised(x)[0]), "bias": over_features(ct)}
        return {name: value.astype(params[name].dtype) for name, value in cts.items()}


@final
@dataclasses.dataclass(frozen=True)
class Softmax(Layer):
    """y = exp(x) / sum exp(x) over the last axis, transposed Jacobian diag(y) - y y^T.

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.layers import Softmax
      >>> Softmax().apply(None, jnp.zeros((1, 2))).tolist()
      [[0.5, 0.5]]
    """

    places_apart: ClassVar = True

    def apply(self, params, x):
        if x.ndim < 2:
            raise ValueError(
                f"x: got shape {tuple(x.shape)}; Softmax wants the batch in its first axis and "
                "channels in its last"
            )
        return jax.nn.softmax(x, axis=-1)

    def adjoint_operator(self, params, x, y):
        y = _places(y)
        return LowRankUpdate(y, -y[..., None], y[..., None])


def _places(x: Array) -> Array:
    """(batch, *places, n) as (batch, places, n)."""
    return x.reshape(x.shape[0], math.prod(x.shape[1:-1]), x.shape[-1])
