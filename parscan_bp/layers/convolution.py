"""Convolutions and transposed convolutions of any number of spatial axes."""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp

from parscan_bp.arguments import check_bool, set_ints
from parscan_bp.layers.base import (
    Layer,
    Pairs,
    as_mask,
    check_channels,
    check_params,
    masked_kernel,
    over_features,
    scaled_normal,
    with_bias,
)
from parscan_bp.layers.windows import Padding, PerAxis, Window
from parscan_bp.operators import Convolution
from parscan_bp.sparsity.windows import Axis
from parscan_bp.trees import struct_like
from parscan_bp.types import Array, PyTree


@dataclasses.dataclass(frozen=True)
class Convolutional(Layer):
    """What `Conv` and `ConvTranspose` share: all but the geometry."""

    channels: int
    window: tuple[int, ...]
    strides: PerAxis = 1
    padding: Padding = "SAME"
    dilation: PerAxis = 1
    groups: int = 1
    bias: bool = True
    mask: Any = dataclasses.field(default=None, repr=False)

    channels_apart: ClassVar = True

    def __post_init__(self):
        object.__setattr__(self, "mask", as_mask(self.mask))
        set_ints(self, channels=1, groups=1)
        check_bool("bias", self.bias)
        for name, value in self._window.fields.items():
            object.__setattr__(self, name, value)
        if self.channels % self.groups:
            raise ValueError(
                f"channels: got {self.channels}; a multiple of groups={self.groups} is wanted"
            )

    @property
    def _window(self) -> Window:
        return Window.of(self.window, self.strides, self.padding, self.dilation)

    @property
    @abc.abstractmethod
    def _steps(self) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
        """The window's strides, and how far apart the input's entries are spread."""

    @abc.abstractmethod
    def windows(self, spatial: tuple[int, ...]) -> tuple[Axis, ...]: ...

    def init(self, key, features, dtype=float):
        if features[-1] % self.groups:
            raise ValueError(
                f"features: got {features[-1]} channels; a multiple of groups={self.groups} "
                "is wanted"
            )
        shape = (*self.window, features[-1] // self.groups, self.channels)
        params = {"kernel": scaled_normal(key, shape, math.prod(shape[:-1]), dtype)}
        return {**params, "bias": jnp.zeros(self.channels, dtype)} if self.bias else params

    def apply(self, params, x):
        check_params(self, params, ("kernel", "bias")[: 1 + self.bias])
        return self._value(params, x, None)

    def slide(self, params, x, pads, inside):
        return self._value(params, x, pads)

    def _value(self, params: PyTree, x: Array, pads: Pairs | None) -> Array:
        dtype = jnp.result_type(x, params["kernel"])
        jacobian = self._jacobian(params["kernel"].astype(dtype), x, pads)
        y = jacobian.convolve(x.astype(dtype), precision=None)
        return with_bias(y, params["bias"]) if self.bias else y

    def _jacobian(self, kernel: Array, x: Array, pads: Pairs | None = None) -> Convolution:
        """That of the linear part, with these pads or else the layer's own."""
        want = (*self.window, kernel.shape[-2], self.channels)
        if tuple(kernel.shape) != want:
            raise ValueError(
                f"kernel: got shape {tuple(kernel.shape)}; window={self.window} and "
                f"channels={self.channels} want (*window, in / groups, channels)"
            )
        name = type(self).__name__
        sizes = self._window.spatial_sizes(name, x)
        what = f"{name} with a kernel of shape {tuple(kernel.shape)} and groups={self.groups}"
        check_channels(what, kernel.shape[-2] * self.groups, x)
        if pads is None:
            pads = tuple(axis.padding for axis in self.windows(sizes))
        strides, spread = self._steps
        kernel = masked_kernel(kernel, self.mask)
        return Convolution(
            kernel, sizes, strides, pads, self._window.dilation, spread, self.groups, mask=self.mask
        )

    def adjoint_operator(self, params, x, y):
        return self._jacobian(params["kernel"], x).transpose()

    def pullback(self, params, x, y, ct):
        dtype = jnp.result_type(x, params["kernel"])
        x, old = x.astype(dtype), params["kernel"]
        # Linear in the kernel, too.
        convolve = lambda kernel: self._jacobian(kernel, x).convolve(x)  # noqa: E731
        shape = struct_like(ct, old.shape, dtype)
        (kernel,) = jax.linear_transpose(convolve, shape)(ct.astype(dtype))
        cts = {"kernel": kernel.astype(old.dtype)}
        if self.bias:
            cts["bias"] = over_features(ct).astype(params["bias"].dtype)
        return cts


@final
@dataclasses.dataclass(frozen=True)
class Conv(Convolutional):
    """y_p = b + sum_k x_(p stride + k dilation - low) K_k, p and k running over 1, 2, ... axes.

    Parameters are ``{"kernel": (*window, in / groups, channels), "bias": (channels,)}``, as in
    Flax. The transposed Jacobian is a `Convolution` with this kernel, transposed. It does not
    depend on the input, and the batch shares it.

    Args:
      channels: number of output channels.
      window: sizes of the kernel; their number is the number of spatial axes.
      strides: one for each axis, or one for all.
      padding: "SAME", "SAME_LOWER", "VALID", a width, or widths or (low, high) pairs by axis.
      dilation: distance of the kernel's entries, for each axis or for all.
      groups: number of groups of channels; that of the input channels if depthwise.
      bias: whether there is a b.
      mask: where a pruned kernel is kept: bools in its shape, known before anything runs. Its
        other numbers count as zero and have no gradient; the Jacobian has no entries for them.

    Raises:
      TypeError, ValueError: if an argument is none of the above; by `apply`, if sizes do not fit.
      TypeError: if the mask is not an array of bools, or is traced.

    Source: BPPSA appendix D.1, for any geometry.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from parscan_bp.layers import Conv
      >>> layer = Conv(8, (3, 3), strides=2)
      >>> params = layer.init(jax.random.key(0), (32, 32, 3))
      >>> layer.apply(params, jnp.ones((16, 32, 32, 3))).shape
      (16, 16, 16, 8)
    """

    def windows(self, spatial):
        return self._window.axes(spatial)

    @property
    def _steps(self):
        return self._window.strides, None


@final
@dataclasses.dataclass(frozen=True)
class ConvTranspose(Convolutional):
    """`Conv` with stride 1 of an input whose entries are spread ``strides`` apart.

    The convention of `jax.lax.conv_transpose` and Flax: the kernel is not flipped. "SAME" makes
    outputs of ``strides`` times the input's sizes, "VALID" all that the window reaches; widths
    are zeros around the spread input.

    Args:
      channels, window, padding, dilation, groups, bias, mask: see `Conv`.
      strides: by how much the input is spread, for each axis or for all.

    Raises:
      ValueError: as `Conv`.

    Source: BPPSA appendix D.1, for any geometry.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from parscan_bp.layers import ConvTranspose
      >>> layer = ConvTranspose(4, (3,), strides=2)
      >>> params = layer.init(jax.random.key(0), (8, 3))
      >>> layer.apply(params, jnp.ones((5, 8, 3))).shape
      (5, 16, 4)
    """

    def windows(self, spatial):
        return self._window.transposed_axes(spatial)

    @property
    def _steps(self):
        return None, self._window.strides
