"""The two feed-forward networks of the BPPSA papers, and their loss through any forward pass."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

import parscan_bp
from bench.paper.images import cifar
from parscan_bp.layers import Conv, Flatten, Layer, Linear, MaxPool, ReLU, activations

Forward = Callable[[Sequence[Layer], Any, jax.Array], jax.Array]

CLASSES = cifar.CLASSES
_POOL = "pool"
_VGG11 = (64, _POOL, 128, _POOL, 256, 256, _POOL, 512, 512, _POOL, 512, 512, _POOL)
_HIDDEN = 512


def lenet5() -> tuple[Layer, ...]:
    """LeNet-5 for 32x32 images, with ReLU and max-pooling.

    Source: LeCun et al., Gradient-based learning applied to document recognition (1998).
    """
    features = [layer for channels in (6, 16) for layer in _stage(channels, 5, "VALID")]
    hidden = [layer for size in (120, 84) for layer in (Linear(size), ReLU())]
    return (*features, Flatten(), *hidden, Linear(CLASSES))


def vgg11(size: int = 32, divisor: int = 1) -> tuple[Layer, ...]:
    """VGG-11 for small images: eight convolutions, five poolings, a head of three linear maps.

    Args:
        size: of the images; a pooling that 1x1 maps would reach is left out.
        divisor: of the number of channels, for a narrow network.

    Source: Simonyan and Zisserman (2015), configuration A; BPPSA section 4.3.
    """
    layers: list[Layer] = []
    for entry in _VGG11:
        if isinstance(entry, int):
            layers += [Conv(entry // divisor, (3, 3)), ReLU()]
        elif size > 1:
            layers.append(MaxPool((2, 2)))
            size //= 2
    hidden = [layer for _ in range(2) for layer in (Linear(_HIDDEN // divisor), ReLU())]
    return (*layers, Flatten(), *hidden, Linear(CLASSES))


def plain(layers: Sequence[Layer], params: Any, images: jax.Array) -> jax.Array:
    """The layers one after the other: JAX's own differentiation."""
    return activations(layers, params, images)[-1]


def chain(solver: Any) -> Forward:
    """`parscan_bp.chain` with a solver."""
    return lambda layers, params, images: parscan_bp.chain(layers, params, images, solver=solver)


def loss(layers: Sequence[Layer], forward: Forward) -> Callable[[Any, cifar.Batch], jax.Array]:
    """Mean softmax cross entropy of `(params, batch)`."""

    def of(params: Any, batch: cifar.Batch) -> jax.Array:
        scores = forward(layers, params, batch.images)
        return optax.softmax_cross_entropy_with_integer_labels(scores, batch.labels).mean()

    return of


def scorer(layers: Sequence[Layer], batch: cifar.Batch) -> Callable[[Any], dict[str, float]]:
    """Function from parameters to loss and accuracy on a batch, by the plain forward pass."""

    @jax.jit
    def score(params: Any, batch: cifar.Batch) -> tuple[jax.Array, jax.Array]:
        scores = plain(layers, params, batch.images)
        losses = optax.softmax_cross_entropy_with_integer_labels(scores, batch.labels)
        return losses.mean(), jnp.mean(jnp.argmax(scores, axis=-1) == batch.labels)

    def of(params: Any) -> dict[str, float]:
        value, accuracy = score(params, batch)
        return {"loss": float(value), "accuracy": float(accuracy)}

    return of


def _stage(channels: int, window: int, padding: str) -> tuple[Layer, ...]:
    return (Conv(channels, (window, window), padding=padding), ReLU(), MaxPool((2, 2)))
