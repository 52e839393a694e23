"""Linear maps of the last axis, and the change of shape before them."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar, final

import jax.numpy as jnp

from parscan_bp.arguments import check_bool, set_ints
from parscan_bp.layers.base import (
    Layer,
    as_mask,
    check_channels,
    check_params,
    flat,
    masked_kernel,
    over_features,
    scaled_normal,
    with_bias,
)
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
      mask: where a pruned kernel is kept, bools (in, channels); see `Conv`. The transposed Jacobian
        is then `Sparse`.

    Raises:
      TypeError, ValueError: if ``channels`` is no positive int; by `apply`, if sizes do not fit.
      TypeError: if the mask is not an array of bools, or is traced.

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
    mask: Any = dataclasses.field(default=None, repr=False)

    channels_apart: ClassVar = True
    places_apart: ClassVar = True

    def __post_init__(self):
        object.__setattr__(self, "mask", as_mask(self.mask))
        set_ints(self, channels=1)
        check_bool("bias", self.bias)

    def init(self, key, features, dtype=float):
        kernel = scaled_normal(key, (features[-1], self.channels), features[-1], dtype)
        bias = {"bias": jnp.zeros(self.channels, dtype)} if self.bias else {}
        return {"kernel": kernel, **bias}

    def apply(self, params, x):
        check_params(self, params, ("kernel", "bias")[: 1 + self.bias])
        kernel = params["kernel"]
        if kernel.ndim != 2 or kernel.shape[1] != self.channels:
            raise ValueError(
                f"kernel: got shape {tuple(kernel.shape)}; (in, {self.channels}) is wanted"
            )
        what = f"Linear with a kernel of shape {tuple(kernel.shape)}"
        check_channels(what, kernel.shape[0], x)
        y = x @ masked_kernel(kernel, self.mask)
        return with_bias(y, params["bias"]) if self.bias else y

    def adjoint_operator(self, params, x, y):
        kernel, mask = masked_kernel(params["kernel"], self.mask), self.mask
        if x.ndim == 2 and mask is None:
            return Dense(kernel)
        places = math.prod(x.shape[1:-1])
        op = Convolution(kernel[None], (places,), mask=mask).transpose()
        return op.unpacked() if x.ndim == 2 else op

    def pullback(self, params, x, y, ct):
        kernel = einsum("...i,...o->io", x, ct).astype(params["kernel"].dtype)
        cts = {"kernel": masked_kernel(kernel, self.mask)}
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
