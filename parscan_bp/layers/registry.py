"""What can stand in a list of layers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from parscan_bp.arguments import described
from parscan_bp.layers.base import Layer
from parscan_bp.layers.convolution import Conv, ConvTranspose
from parscan_bp.layers.dropout import Dropout
from parscan_bp.layers.elementwise import Elementwise, ReLU, Sigmoid, Tanh
from parscan_bp.layers.function import Coloured, Function
from parscan_bp.layers.linear import Flatten, Linear
from parscan_bp.layers.normalisation import BatchNorm, LayerNorm, Softmax
from parscan_bp.layers.pooling import AveragePool, MaxPool
from parscan_bp.layers.residual import Residual

LAYERS: tuple[type[Layer], ...] = (
    AveragePool,
    BatchNorm,
    Coloured,
    Conv,
    ConvTranspose,
    Dropout,
    Elementwise,
    Flatten,
    Function,
    LayerNorm,
    Linear,
    MaxPool,
    Residual,
    Softmax,
)
"""The layers of the package. A new one is a file and a row here."""

_FUNCTIONS: dict[Any, Layer] = {
    jax.nn.relu: ReLU(),
    jnp.tanh: Tanh(),
    jax.nn.tanh: Tanh(),
    jax.nn.sigmoid: Sigmoid(),
    jax.nn.softmax: Softmax(),
    jax.nn.elu: Elementwise(jax.nn.elu),
    jax.nn.gelu: Elementwise(jax.nn.gelu),
    jax.nn.silu: Elementwise(jax.nn.silu),
    jax.nn.softplus: Elementwise(jax.nn.softplus),
}
_KINDS: dict[type, Callable[[Any], Layer]] = {}


def register(kind: type, build: Callable[[Any], Layer]) -> None:
    """Lets objects of another class stand for a layer.

    Args:
      kind: the class; its subclasses are not included.
      build: function from such an object to a `Layer`.

    Raises:
      TypeError: if ``kind`` is not a class, or is one of layers; if ``build`` is no function.

    Example:
      >>> import dataclasses
      >>> from parscan_bp.layers import Linear, as_layer, register
      >>> @dataclasses.dataclass(frozen=True)
      ... class TheirDense:
      ...     units: int
      >>> register(TheirDense, lambda theirs: Linear(theirs.units))
      >>> as_layer(TheirDense(3))
      Linear(channels=3, bias=True)
    """
    if not callable(build):
        raise TypeError(f"build: got {described(build)}; a function is wanted")
    if not isinstance(kind, type) or issubclass(kind, Layer):
        raise TypeError(f"kind: got {kind!r}; a class that is not a Layer itself is wanted")
    _KINDS[kind] = build


def as_layer(thing: Any, where: str = "layer") -> Layer:
    """The layer that an entry of a list of layers stands for.

    Args:
      thing: a `Layer`, a known function such as `jax.nn.relu`, or an object of a registered class.
      where: what to call it in an error.

    Raises:
      TypeError: listing what is known.

    Example:
      >>> import jax
      >>> from parscan_bp.layers import as_layer
      >>> as_layer(jax.nn.softmax)
      Softmax()
    """
    if isinstance(thing, Layer):
        return thing
    if type(thing) in _KINDS:
        return _KINDS[type(thing)](thing)
    found = _FUNCTIONS.get(thing) if _may_be_known(thing) else None
    if found is not None:
        return found
    if isinstance(thing, type) and issubclass(thing, Layer):
        raise TypeError(
            f"{where}: {thing.__name__} is a class; a layer is wanted, such as Linear(8)"
        )
    raise TypeError(
        f"{where}: there is no builder for {_told(thing)}. Known layers: {_names(LAYERS)}; known "
        f"functions: {_names(_FUNCTIONS)}; registered classes: {_names(_KINDS) or 'none'}. "
        "Elementwise(f) takes an elementwise function, Function(f) any; register adds a class"
    )


def _told(thing: Any) -> str:
    text = repr(thing)
    if len(text) <= 120 and "\n" not in text:
        return text
    return f"a value of type {type(thing).__module__}.{type(thing).__qualname__}"


def _may_be_known(thing: Any) -> bool:
    return callable(thing) and isinstance(thing, Hashable) and not isinstance(thing, type)


def as_stack(layers: Any) -> tuple[Layer, ...]:
    """The layers of a sequence of what `as_layer` takes.

    Raises:
      TypeError: if it is no sequence, such as a single layer; or as `as_layer`.
    """
    if isinstance(layers, Layer | str | Mapping) or not isinstance(layers, Iterable):
        raise TypeError(
            f"layers: got {described(layers)}; a sequence of layers is wanted, such as [Linear(8)]"
        )
    return tuple(as_layer(thing, f"layers[{k}]") for k, thing in enumerate(layers))


def _names(things) -> str:
    return ", ".join(sorted({thing.__name__ for thing in things}))
