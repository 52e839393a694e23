"""A network trained with normalised convolutions, which are folded into plain ones afterwards.

In training, what a convolution makes is normalised over the batch, before its bias:

    y = (W x - mean) / std + b

Afterwards the mean and standard deviation over training images become part of W and b, so that the
network is one of plain convolutions, and a weight that is zero stays zero. A factor beside the bias
would change nothing where the next convolution is normalised, too.

Source: Ioffe and Szegedy, Batch normalization (2015).
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from parscan_bp.layers import Conv, Layer, MaxPool

EPSILON = 1e-5
_FEW = 4
Convolved = Callable[[jax.Array, Any], tuple[jax.Array, Any]]
"""(W x, parameters) to what goes on, and parameters of the same layer."""


def forward(layers: Sequence[Layer], params: Any, images: jax.Array) -> jax.Array:
    """The layers one after the other, each convolution normalised."""
    return _run(_normalised, layers, params, images)[0]


def fold(layers: Sequence[Layer], params: Any, images: jax.Array) -> Any:
    """Parameters with which `networks.plain` computes what `forward` does on these images."""

    def folded(y: jax.Array, own: Any) -> tuple[jax.Array, Any]:
        mean, scale = _statistics(y)
        kernel, bias = own["kernel"] * scale, own["bias"] - mean * scale
        return _normalised(y, own)[0], {"kernel": kernel, "bias": bias}

    return jax.jit(lambda params, images: _run(folded, layers, params, images)[1])(params, images)


def unfold(layers: Sequence[Layer], params: Any, images: jax.Array) -> Any:
    """Parameters from which `forward` goes on where `networks.plain` was, on these images.

    Of parameters that `fold` made: variances are one, or zero where a channel is constant.
    """

    def unfolded(y: jax.Array, own: Any) -> tuple[jax.Array, Any]:
        return _normalised(y, {**own, "bias": own["bias"] + _statistics(y)[0]})

    return jax.jit(lambda params, images: _run(unfolded, layers, params, images)[1])(params, images)


def _normalised(y: jax.Array, own: Any) -> tuple[jax.Array, Any]:
    mean, scale = _statistics(y)
    return (y - mean) * scale + own["bias"], own


def _statistics(y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Of each channel the mean, and one over the standard deviation."""
    return y.mean((0, 1, 2)), jax.lax.rsqrt(y.var((0, 1, 2)) + EPSILON)


def _run(
    convolved: Convolved, layers: Sequence[Layer], params: Any, x: jax.Array
) -> tuple[jax.Array, list[Any]]:
    """The last output, and the parameters as `convolved` makes them of each convolution's."""
    made: list[Any] = []
    for layer, own in zip(layers, params, strict=True):
        if isinstance(layer, Conv):
            x, own = convolved(_convolve(layer, own["kernel"], x), own)
        elif isinstance(layer, MaxPool):
            batch, high, wide, channels = x.shape
            x = x.reshape(batch, high // 2, 2, wide // 2, 2, channels).max((2, 4))
        else:
            x = layer.apply(own, x)
        made.append(own)
    return x, made


def _convolve(layer: Conv, kernel: jax.Array, x: jax.Array) -> jax.Array:
    """Padding "SAME", stride 1.

    XLA runs convolutions of few channels or of small maps at a part of its usual rate on a CPU, and
    products with the columns of their windows at the whole.
    """
    if min(x.shape[1:]) >= _FEW:
        return layer.apply({"kernel": kernel, "bias": jnp.zeros_like(kernel[0, 0, 0])}, x)
    (high, wide), (h, w) = x.shape[1:3], layer.window
    padded = jnp.pad(x, ((0, 0), (h // 2, h // 2), (w // 2, w // 2), (0, 0)))
    places = ((i, j) for i in range(h) for j in range(w))
    windows = [padded[:, i : i + high, j : j + wide] for i, j in places]
    return jnp.concatenate(windows, axis=-1) @ kernel.reshape(-1, layer.channels)
