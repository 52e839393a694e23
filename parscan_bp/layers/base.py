"""What a layer states about itself: its values, its transposed Jacobian, its pullback."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from parscan_bp.arguments import check_array, described
from parscan_bp.operators import Operator
from parscan_bp.sparsity import Pattern
from parscan_bp.sparsity.pattern import on_device
from parscan_bp.sparsity.windows import Axis
from parscan_bp.types import Array, PyTree

Pairs = tuple[tuple[int, int], ...]
"""(low, high) for each spatial axis."""


@dataclasses.dataclass(frozen=True)
class Layer(abc.ABC):
    """A layer y = f(x; theta) with an analytic transposed Jacobian; a frozen configuration.

    Arrays are ``(batch, *features)``: the leading axis is the batch, whose entries are
    independent, and channels come last. Operators act on features flattened in that order,
    with the batch as their only stack axis; an operator whose leaves do not have it is shared
    by the whole batch (weights of a convolution).

    A layer gives the one operator that takes the fewest numbers. It keeps all that its matrix
    is made of, so that whoever wants another form of it converts it (`to_structure`).

    A new layer is one file with a subclass: `apply`, `adjoint_operator`, and with parameters
    also `init` and `pullback`.

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.layers import ReLU
      >>> layer, x = ReLU(), jnp.array([[-1.0, 2.0, 3.0]])
      >>> layer.adjoint_operator(None, x, layer.apply(None, x)).matvec(jnp.ones(3)).tolist()
      [[0.0, 1.0, 1.0]]

    What a layer may say beside that is how its work can be divided, for `parscan_bp.parallel`:

    Attributes:
      channels_apart: whether the last axis of all parameters is that of the output's channels,
        each of which is made by itself.
      places_apart: whether the places between the batch and the channels are worked on one by
        one; else `windows` tells what each place sees, if that is known.
      padding_value: what `windows` see where there is no input.
    """

    channels_apart: ClassVar[bool] = False
    places_apart: ClassVar[bool] = False
    padding_value: ClassVar[float] = 0.0

    @property
    def label(self) -> str:
        """What to call it in a table."""
        return type(self).__name__

    def init(self, key: Array, features: tuple[int, ...], dtype=float) -> PyTree:
        """Parameters for inputs of shape ``(batch, *features)``; ``None`` if there are none."""
        del key, features, dtype
        return None

    @abc.abstractmethod
    def apply(self, params: PyTree, x: Array) -> Array:
        """y ``(batch, *features)``.

        Raises:
          ValueError: if the sizes of ``params`` and ``x`` do not fit.
        """

    @abc.abstractmethod
    def adjoint_operator(self, params: PyTree, x: Array, y: Array) -> Operator:
        """The transposed Jacobian (d y / d x)^T, of (size of x) x (size of y) per batch entry.

        Args:
          params: parameters.
          x: the input.
          y: the output, ``apply(params, x)``.
        """

    def pullback(self, params: PyTree, x: Array, y: Array, ct: Array) -> PyTree:
        """Cotangents of the parameters, summed over the batch, as `jax.vjp` returns them.

        Args:
          params: parameters.
          x: the input.
          y: the output.
          ct: cotangent of the output, in its shape.
        """
        del params, x, y, ct
        return None

    def windows(self, spatial: tuple[int, ...]) -> tuple[Axis, ...] | None:
        """The windows along each axis of an input of these spatial sizes; ``None`` without any."""
        del spatial
        return None

    def slide(self, params: PyTree, x: Array, pads: Pairs, inside: Array) -> Array:
        """`apply` of a layer with `windows`, on a part of an input.

        Args:
          params: parameters.
          x: the part, (batch, *spatial, channels), with `padding_value` where there is no input.
          pads: (low, high) around each spatial axis, in the place of the layer's own padding.
          inside: (1, *spatial, 1), of the part's dtype: 1 where there is input, 0 elsewhere.
        """
        raise NotImplementedError(f"{type(self).__name__} has no windows")


def check_params(layer: Layer, params: Any, names: Sequence[str], *, arrays: bool = True) -> None:
    """Raises unless ``params`` is a mapping with these names and no others, mostly to arrays."""
    got = sorted(params) if isinstance(params, Mapping) else described(params)
    if got != sorted(names):
        raise ValueError(f"params: got {got}; {type(layer).__name__} wants {sorted(names)}")
    for name in names if arrays else ():
        check_array(f"params[{name!r}]", params[name])


def with_bias(y: Array, bias: Array) -> Array:
    """``y + bias``, one number for each channel.

    Raises:
      ValueError: if there are not as many; one for all would have another cotangent.
    """
    if bias.shape != y.shape[-1:]:
        raise ValueError(
            f"bias: got shape {tuple(bias.shape)}; ({y.shape[-1]},), one for each channel, is "
            "wanted"
        )
    return y + bias


def flat(x: Array) -> Array:
    """(batch, *features) as (batch, size)."""
    return x.reshape(x.shape[0], math.prod(x.shape[1:]))


def no_cotangent(value: Array) -> np.ndarray:
    """What `jax.vjp` returns for a parameter that is not a real number."""
    return np.zeros(jnp.shape(value), jax.dtypes.float0)


def scaled_normal(key: Array, shape: tuple[int, ...], fan_in: int, dtype) -> Array:
    """Normal numbers of variance 2 / fan_in (He et al., 2015)."""
    return jax.random.normal(key, shape, dtype) * jnp.sqrt(jnp.asarray(2 / fan_in, dtype))


def as_mask(mask: Pattern | np.ndarray | None) -> Pattern | None:
    """The mask of a kernel as the pattern of its last axis beside all others, flat.

    Raises:
      TypeError: if it is not an array of bools, or is traced: it is static.
    """
    if mask is None or isinstance(mask, Pattern):
        return mask
    kind = getattr(getattr(mask, "dtype", None), "kind", None)
    if isinstance(mask, jax.core.Tracer) or kind != "b":
        raise TypeError(
            f"mask: got {type(mask).__name__} of {getattr(mask, 'dtype', 'no dtype')}; a concrete "
            "array of bools in the kernel's shape is wanted"
        )
    mask = np.asarray(mask)
    return Pattern.from_mask(mask.reshape(-1, mask.shape[-1]))


def masked_kernel(kernel: Array, mask: Pattern | None) -> Array:
    """The kernel with zeros outside of its mask.

    Raises:
      ValueError: if the mask is of another kernel.
    """
    if mask is None:
        return kernel
    flat = (math.prod(kernel.shape[:-1]), kernel.shape[-1])
    if mask.shape != flat:
        raise ValueError(
            f"mask: got one of {mask.shape[0]} times {mask.shape[1]} numbers; the kernel of shape "
            f"{tuple(kernel.shape)} has {flat[0]} times {flat[1]}"
        )
    return jnp.where(on_device(mask.as_mask().reshape(kernel.shape)), kernel, 0)


def over_features(ct: Array) -> Array:
    """The sum over all axes but the last: the cotangent of a value per channel."""
    return ct.sum(tuple(range(ct.ndim - 1)))


def per_channel(value: Array, x: Array) -> Array:
    """A value per channel as one per feature of ``x``, flat, shared by the batch."""
    return jnp.broadcast_to(value, x.shape[1:]).reshape(math.prod(x.shape[1:]))


def check_channels(what: str, channels: int, x: Array) -> None:
    """Raises unless ``x`` has a channel axis of this size."""
    if x.ndim < 2 or x.shape[-1] != channels:
        raise ValueError(
            f"x: got shape {tuple(x.shape)}; {what} wants {channels} channels in its last axis, "
            "and the batch in its first"
        )
