"""Linear maps of the last axis, and the change of shape before them."""

from __future__ import annotations

import dataclasses
import math
from typing import final

import jax.numpy as jnp

from parscan_bp.layers.base import Layer, check_channels, flat, over_features, scaled_normal
from parscan_bp.operators import Convolution, Dense, Identity
from parscan_bp.operators.arithmetic import einsum


@final
@dataclasses.dataclass(frozen=True)
class Linear(Layer):
    """y = x K + b on the last axis.

    Parameters are ``{"kernel": (in, channels), "bias": (channels,)}``, as in Flax. The transposed
    Jacobian is K itself, shared by the batch; where x has axes between the batch and the last
    one, it is a convolution with a window of 1.

    Args:
      channels: size of the last axis of y.
      bias: whether there is a b.

    Raises:
      ValueError: if ``channels`` is not positive; by `apply`, if sizes do not fit.

    Source: BPPSA eq. 3.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from parscan_bp.layers import Linear
      >>> layer = Linear(2, bias=False)
      >>> params = {"kernel": jnp.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])}
      >>> x = jnp.ones((1, 3))
      >>> y = layer.apply(params, x)
      >>> layer.adjoint_operator(params, x, y).matvec(jnp.ones(2)).tolist()
      [3.0, 7.0, 11.0]
    """

    channels: int
    bias: bool = True

    def __post_init__(self):
        if isinstance(self.channels, bool) or not isinstance(self.channels, int):
            raise ValueError(f"channels: got {self.channels!r}; a positive int is wanted")
        if self.channels < 1:
            raise ValueError(f"channels: got {self.channels}; at least 1 is wanted")

    def init(self, key, features, dtype=float):
        kernel = scaled_normal(key, (features[-1], self.channels), features[-1], dtype)
        bias = {"bias": jnp.zeros(self.channels, dtype)} if self.bias else {}
        return {"kernel": kernel, **bias}

    def apply(self, params, x):
        kernel = params["kernel"]
        if kernel.ndim != 2 or kernel.shape[1] != self.channels:
            raise ValueError(
                f"kernel: got shape {tuple(kernel.shape)}; (in, {self.channels}) is wanted"
            )
        what = f"Linear with a kernel of shape {tuple(kernel.shape)}"
        check_channels(what, kernel.shape[0], x)
        y = x @ kernel
        return y + params["bias"] if self.bias else y

    def adjoint_operator(self, params, x, y):
        kernel = params["kernel"]
        if x.ndim == 2:
            return Dense(kernel)
        places = math.prod(x.shape[1:-1])
        return Convolution(kernel[None], (places,)).transpose()

    def pullback(self, params, x, y, ct):
        cts = {"kernel": einsum("...i,...o->io", x, ct).astype(params["kernel"].dtype)}
        if self.bias:
            cts["bias"] = over_features(ct).astype(params["bias"].dtype)
        return cts


@final
@dataclasses.dataclass(frozen=True)
class Flatten(Layer):
    """(batch, *features) as (batch, size): the same numbers, transposed Jacobian I.

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.layers import Flatten
      >>> Flatten().apply(None, jnp.ones((2, 4, 4, 3))).shape
      (2, 48)
    """

    def apply(self, params, x):
        return flat(x)

    def adjoint_operator(self, params, x, y):
        return Identity(math.prod(x.shape[1:]), x.dtype)
