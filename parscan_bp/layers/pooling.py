"""Max- and average-pooling of any number of spatial axes."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import ClassVar, final

import jax.numpy as jnp
from jax import lax

from parscan_bp.arguments import check_bool
from parscan_bp.layers.base import Layer, Pairs, flat
from parscan_bp.layers.windows import Padding, PerAxis, Window
from parscan_bp.operators import Convolution, Diagonal, Product, Selection
from parscan_bp.sparsity.windows import Axis, window_pattern
from parscan_bp.types import Array


@dataclasses.dataclass(frozen=True)
class Pool(Layer):
    """What the pooling layers share: the geometry of their windows."""

    window: tuple[int, ...]
    strides: PerAxis | None = None
    padding: Padding = "VALID"
    dilation: PerAxis = 1

    def __post_init__(self):
        for name, value in self._window.fields.items():
            object.__setattr__(self, name, value)

    @property
    def _window(self) -> Window:
        strides = self.window if self.strides is None else self.strides
        return Window.of(self.window, strides, self.padding, self.dilation)

    def windows(self, spatial):
        return self._window.axes(spatial)

    def _pads(self, x: Array) -> Pairs:
        return self._window.pads(self._window.spatial_sizes(type(self).__name__, x))

    def _reduce(self, x: Array, start: float, combine, pads: Pairs) -> Array:
        w = self._window
        return lax.reduce_window(
            x,
            start,
            combine,
            (1, *w.sizes, 1),
            (1, *w.strides, 1),
            ((0, 0), *pads, (0, 0)),
            window_dilation=(1, *w.dilation, 1),
        )


@final
@dataclasses.dataclass(frozen=True)
class MaxPool(Pool):
    """y_p = max over window entries k of x_(p stride + k dilation - low), by channel.

    The transposed Jacobian is a `Selection`: each output has one source, the one that XLA's
    backward pass takes. Of equal entries that is the first in row-major order; padding
    is never taken, also where JAX takes it before entries that are minus infinity.
    Windows may overlap.

    Args:
      window: sizes of the window; their number is the number of spatial axes.
      strides: one for each axis, or one for all; ``None`` is the window.
      padding: "SAME", "SAME_LOWER", "VALID", a width, or widths or (low, high) pairs by axis.
      dilation: distance of the window's entries, for each axis or for all.

    Raises:
      ValueError: if an argument is none of the above; by `apply`, if sizes do not fit.

    Source: BPPSA appendix D.3, for any geometry (there without overlap).

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.layers import MaxPool
      >>> layer, x = MaxPool((2,)), jnp.array([1.0, 3.0, 2.0, 2.0]).reshape(1, 4, 1)
      >>> y = layer.apply(None, x)
      >>> layer.adjoint_operator(None, x, y).source.tolist()
      [[[1], [2]]]
    """

    padding_value: ClassVar = -math.inf

    def apply(self, params, x):
        return self._maximum(x, self._pads(x))

    def slide(self, params, x, pads, inside):
        return self._maximum(x, pads)

    def _maximum(self, x: Array, pads: Pairs) -> Array:
        if set(self._window.dilation) == {1}:
            return self._reduce(x, self.padding_value, lax.max, pads)
        # XLA has no derivative of a maximum over dilated windows; this has the same one.
        entries = self._window.entries(x, pads, self.padding_value)
        best = next(entries)
        for value in entries:  # the one so far stays if it is >= the next, or no number
            best = jnp.where((best >= value) | jnp.isnan(best), best, value)
        return best

    def adjoint_operator(self, params, x, y):
        best, source = jnp.zeros_like(y), jnp.full(y.shape, -1)
        for value, inside, index in self._entries(x):
            # XLA keeps the entry selected so far if it is >= the next; no NaN is.
            take = inside & ((source < 0) | ~(best >= value))
            best, source = jnp.where(take, value, best), jnp.where(take, index, source)
        # A window in the padding keeps -1: it has no source.
        by_position = (x.shape[0], math.prod(y.shape[1:-1]), y.shape[-1])
        pattern, _ = window_pattern(self._axes(x))
        return Selection(source.reshape(by_position), jnp.ones(by_position, x.dtype), pattern)

    def _axes(self, x: Array) -> tuple[Axis, ...]:
        return self.windows(self._window.spatial_sizes(type(self).__name__, x))

    def _entries(self, x: Array):
        """For every window entry: its value, whether it is inside, its flat input position.

        Each broadcasts with the output. Positions are sums of one-dimensional arrays, so that
        the compiled program has no large constants.
        """
        axes = self._axes(x)
        values = self._window.entries(x, self._pads(x), 0.0)
        for entry, value in zip(itertools.product(*map(range, self.window)), values, strict=True):
            inside, index = jnp.asarray(True), jnp.asarray(0)
            for k, (at, axis) in enumerate(zip(entry, axes, strict=True)):
                position = jnp.asarray(axis.sources[:, at]).reshape(-1, *(1 for _ in axes[k:]))
                inside = inside & (position >= 0)
                index = index + position * math.prod(axis.size for axis in axes[k + 1 :])
            yield value, inside, index


@final
@dataclasses.dataclass(frozen=True)
class AveragePool(Pool):
    """y_p = mean over window entries k of x_(p stride + k dilation - low), by channel.

    The transposed Jacobian is the transpose of a depthwise `Convolution` with a constant kernel,
    shared by the batch.

    Args:
      window, strides, padding, dilation: see `MaxPool`.
      count_padding: whether zeros of the padding count in the mean, as in Flax.

    Raises:
      ValueError: as `MaxPool`.

    Source: BPPSA section 3.3.

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.layers import AveragePool
      >>> layer, x = AveragePool((2,)), jnp.array([1.0, 3.0, 2.0, 2.0]).reshape(1, 4, 1)
      >>> layer.apply(None, x).ravel().tolist()
      [2.0, 2.0]
    """

    count_padding: bool = True

    def __post_init__(self):
        super().__post_init__()
        check_bool("count_padding", self.count_padding)

    def apply(self, params, x):
        return self._reduce(x, 0.0, lax.add, self._pads(x)) * self._weight(x)

    def slide(self, params, x, pads, inside):
        total = self._reduce(x, 0.0, lax.add, pads)
        if self.count_padding:
            return total * (1 / math.prod(self.window))
        return total * (1 / self._reduce(inside, 0.0, lax.add, pads))

    def _weight(self, x: Array) -> Array:
        """One over the number of entries that count, broadcasting with the output."""
        if self.count_padding:
            return jnp.asarray(1 / math.prod(self.window), x.dtype)
        ones = jnp.ones((1, *x.shape[1:]), x.dtype)
        return 1 / self._reduce(ones, 0.0, lax.add, self._pads(x))

    def adjoint_operator(self, params, x, y):
        weight, channels = self._weight(x), x.shape[-1]
        kernel = jnp.ones((*self.window, 1, channels), x.dtype)
        if self.count_padding:
            kernel = kernel * weight
        w = self._window
        adjoint = Convolution(
            kernel, x.shape[1:-1], w.strides, self._pads(x), w.dilation, groups=channels
        ).transpose()
        if self.count_padding:
            return adjoint
        return Product((adjoint, Diagonal(flat(weight)[0])))
