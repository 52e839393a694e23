"""Batch norm with the statistics of the whole batch and domain, wherever they lie."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar, final

import jax.numpy as jnp
from jax import lax

from parscan_bp.arguments import set_numbers
from parscan_bp.layers import Layer
from parscan_bp.layers.base import check_channels, check_params
from parscan_bp.parallel.grids.layers.base import Divided, Divisible, check_types_vary
from parscan_bp.parallel.grids.layout import Layout, without_padding
from parscan_bp.parallel.grids.traffic import Collective, LayerTraffic


@final
@dataclasses.dataclass(frozen=True)
class SyncBatchNorm(Layer, Divisible):
    """y = (x - m) scale / sqrt(v + epsilon) + bias: m, v by channel over batch and places.

    In a `parallel.Stack` the two are those of the whole batch and of the whole images, over all
    devices: two all-reduces of a number for each channel. Entries of the batch depend on each
    other, so that no Jacobian per entry exists: `parscan_bp.chain` does not take it, a stack
    differentiates it by JAX's own rules.

    Parameters are ``{"scale", "bias"}``, each (channels,).

    Args:
      epsilon: added to the variance.

    Raises:
      TypeError, ValueError: if ``epsilon`` is no number of at least 0; by `apply`, if sizes do
        not fit.
      NotImplementedError: by `adjoint_operator`.

    Source: Ioffe and Szegedy 2015, Algorithm 1.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from parscan_bp.parallel import SyncBatchNorm
      >>> layer = SyncBatchNorm(epsilon=0.0)
      >>> params = layer.init(jax.random.key(0), (1,))
      >>> layer.apply(params, jnp.array([[1.0], [3.0]])).tolist()
      [[-1.0], [1.0]]
    """

    epsilon: float = 1e-5

    def __post_init__(self):
        set_numbers(self, epsilon=0)

    def init(self, key, features, dtype=float):
        return {"scale": jnp.ones(features[-1], dtype), "bias": jnp.zeros(features[-1], dtype)}

    def apply(self, params, x):
        return self.divided(Layout(), tuple(x.shape[1:-1])).apply(params, x)

    def adjoint_operator(self, params, x, y):
        raise NotImplementedError(
            "SyncBatchNorm: the batch's own statistics couple its entries, so that no Jacobian per "
            "entry exists; a parallel.Stack differentiates it, parscan_bp.chain does not take it"
        )

    def pullback(self, params, x, y, ct):
        return self.divided(Layout(), tuple(x.shape[1:-1])).pullback(params, x, y, ct)

    def divided(self, layout, spatial):
        return _Divided(self, layout, spatial)


@final
@dataclasses.dataclass(frozen=True)
class _Divided(Divided):
    """`SyncBatchNorm` of inputs of these spatial sizes that lie so."""

    spatial: tuple[int, ...]

    entries_apart: ClassVar = False

    def apply(self, params, x):
        check_params(self.layer, params, ("scale", "bias"))
        for name, value in params.items():
            what = f"SyncBatchNorm with {name} of shape {tuple(value.shape)}"
            check_channels(what, value.size, x)
        samples = self.layout.samples
        count = x.shape[0] * self.layout.data.parts * math.prod(self.spatial)
        dtype = jnp.result_type(x, *params.values())
        # A sum of halves leaves their range where the mean does not.
        x = without_padding(x, self.spatial, self.layout).astype(_wide(x))

        def mean(values):
            total = values.sum(tuple(range(x.ndim - 1)))
            if samples.axes:
                check_types_vary("SyncBatchNorm", samples.axes)
                total = lax.psum(total, samples.axes)
            return total / count

        centred = without_padding(x - mean(x), self.spatial, self.layout)
        inverse = lax.rsqrt(mean(centred * centred) + self.layer.epsilon)  # type: ignore[attr-defined]
        return (centred * (inverse * params["scale"]) + params["bias"]).astype(dtype)

    def adjoint_operator(self, params, x, y):
        return self.layer.adjoint_operator(params, x, y)

    def traffic(self, params, x):
        group = self.layout.samples.parts
        if group == 1:
            return LayerTraffic()
        one = Collective("all-reduce", x.shape[-1] * _wide(x).itemsize, group)
        # The variance's cotangent comes of the scale's, which is summed already.
        return LayerTraffic((one, one), (one,), self._weights(params))


def _wide(x: Any) -> Any:
    """Of the statistics: float32 of halves, else the dtype of x."""
    return jnp.promote_types(x.dtype, jnp.float32)
