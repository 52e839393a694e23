"""Layers whose spatial axes are divided: each device works on some rows of every image."""

from __future__ import annotations

import dataclasses
import math
from typing import final

import jax.numpy as jnp
from jax import lax

from parscan_bp.layers.base import Pairs
from parscan_bp.parallel.grids.halo import Halo
from parscan_bp.parallel.grids.layers.base import Divided, check_types_vary
from parscan_bp.parallel.grids.layout import along, without_padding
from parscan_bp.parallel.grids.traffic import Collective, LayerTraffic
from parscan_bp.types import Array, PyTree


@final
@dataclasses.dataclass(frozen=True)
class DomainParallel(Divided):
    """A layer on a block of every image: rows of the neighbours come in where windows see them.

    A convolution, a transposed one or a pooling of any window, strides, padding and dilation
    exchanges halos along each divided axis, over several devices where a halo is wider than a
    block; along a second axis with the corners. Nothing is ever gathered. A window of 1 at a
    stride of 1 sends nothing, nor does a layer that works place by place.

    Blocks have ceil(size / parts) rows; the last ones are padded, and what is in the padding
    reaches nothing. Cotangents of the parameters are summed over batch and domain.

    Args:
      layer: a layer with `Layer.windows`, or with `Layer.places_apart`.
      layout: how its input and output lie.
      spatial: spatial sizes of the whole input.
      overlap: whether outputs that need no other device's rows are computed apart from the
        others, so that XLA, where it sends asynchronously, computes them while halos travel. That
        takes one divided axis whose blocks do not drift apart (`Halo.aligned`).

    Raises:
      NotImplementedError: if the layer has no domain-parallel form, or ``overlap`` is not to be
        had; by `apply`, inside ``jax.shard_map(check_vma=False)``.
      ValueError: if more axes are divided than there are; if a halo reaches further than the mesh.

    Source: Gholami et al. 2018, figure 3 and eq. 7; Jin, Ginsburg, Keutzer 2018.

    Example:
      >>> from parscan_bp.layers import Conv
      >>> from parscan_bp.parallel import DomainParallel, Layout, Split
      >>> layout = Layout(domain=(Split(("height",), (4,)),))
      >>> layer = DomainParallel(Conv(8, (5, 5)), layout, (32, 32))
      >>> [halo.hops for halo in layer.halos]
      [((1, 2), (-1, 2)), ()]
    """

    spatial: tuple[int, ...]
    overlap: bool = False

    def __post_init__(self):
        layer, divided = self.layer, len(self.layout.domain)
        if not layer.places_apart and layer.windows(self.spatial) is None:
            raise NotImplementedError(
                f"layer: {layer} has no domain-parallel form: what each place of its output sees "
                "is not known. Give it a grid without height and width"
            )
        if divided > len(self.spatial):
            raise ValueError(
                f"layout: got {divided} divided axes for an input of spatial sizes {self.spatial}; "
                "at most as many as there are can be divided"
            )
        for k in self._divided:
            halo = self.halos[k]
            if halo.reaches_too_far:
                raise ValueError(
                    f"layout: the halo of {layer} on {self.spatial} reaches further than the "
                    f"{halo.parts} blocks of {halo.inputs.block} along spatial axis {k}; give the "
                    "layer fewer processes there, or a grid that divides the model"
                )
        if self.overlap and not self.can_overlap:
            raise NotImplementedError(
                f"overlap: {layer} on {self.spatial} is divided along more than one axis, has a "
                "spread input, or its blocks drift apart"
            )

    @property
    def halos(self) -> tuple[Halo, ...]:
        """What is exchanged along each axis; nothing where a layer works place by place."""
        if self.layer.places_apart:
            return ()
        windows = self.layer.windows(self.spatial) or ()
        return tuple(Halo(axis, self.layout.spatial(k).parts) for k, axis in enumerate(windows))

    @property
    def _divided(self) -> list[int]:
        return [k for k in range(len(self.halos)) if self.layout.spatial(k).axes]

    @property
    def can_overlap(self) -> bool:
        """Whether there are outputs that can be computed apart: see ``overlap``."""
        if len(self._divided) != 1:
            return False
        halo = self.halos[self._divided[0]]
        return halo.aligned and halo.axis.spread == 1 and bool(halo.interior)

    def apply(self, params, x):
        check_types_vary(type(self).__name__, self.layout.samples.axes)
        if self.layer.places_apart:
            # Not zeros, where a norm has no derivative: 0, the cotangent, times that is NaN.
            fill = jnp.linspace(1, 2, x.shape[-1], dtype=x.dtype)
            return self.layer.apply(params, without_padding(x, self.spatial, self.layout, fill))
        if self.overlap:
            return self._in_parts(params, x)
        return self._whole(params, self._exchanged(x))

    def _exchanged(self, x: Array) -> Array:
        for k in self._divided:
            halo, split = self.halos[k], self.layout.spatial(k)
            x = halo.exchange(x, k + 1, split, self.layer.padding_value)
        return x

    def _whole(self, params: PyTree, x: Array) -> Array:
        y = self.layer.slide(params, x, self._pads, self._inside(x))
        for k in self._divided:
            y = self.halos[k].own(y, k + 1, self.layout.spatial(k))
        return y

    @property
    def _pads(self) -> Pairs:
        """The pads around what is read: all padding is in it where an axis is divided."""
        return tuple(
            (0, halo.pad) if k in self._divided else halo.axis.padding
            for k, halo in enumerate(self.halos)
        )

    def _inside(self, x: Array) -> Array:
        """1 where there is input; and behind all padding, which only outputs of no use see."""
        inside = jnp.ones((1, *x.shape[1:-1], 1), x.dtype)
        for k in self._divided:
            halo = self.halos[k]
            at, end = halo.positions(self.layout.spatial(k)), halo.axis.size
            there = (at >= 0) & (at < end) | (at >= end + halo.axis.padding[1])
            inside = jnp.where(along(there, k + 1, inside.ndim), inside, 0)
        return inside

    def _in_parts(self, params: PyTree, x: Array) -> Array:
        """The outputs between, of the own rows alone, beside those at both ends."""
        (k,) = self._divided
        halo, dimension = self.halos[k], k + 1
        read = self._exchanged(x)
        own = halo.filled(x, dimension, self.layout.spatial(k), self.layer.padding_value)
        inner = halo.interior
        stretches = [
            (read, range(inner.start), 0),
            (own, inner, halo.lead),
            (read, range(inner.stop, halo.outputs.block), 0),
        ]
        made, whole = [], self._inside(read)
        for source, outputs, shift in stretches:
            if not outputs:
                continue
            start = outputs.start * halo.axis.stride
            size = (len(outputs) - 1) * halo.axis.stride + halo.axis.reach
            part = lax.slice_in_dim(source, start + shift, start + shift + size, axis=dimension)
            inside = lax.slice_in_dim(whole, start, start + size, axis=dimension)
            made.append(self.layer.slide(params, part, self._pads, inside))
        return jnp.concatenate(made, dimension)

    def traffic(self, params, x):
        sent, shape = [], list(x.shape)
        for k in self._divided:
            halo = self.halos[k]
            others = math.prod(shape) // shape[k + 1]
            for _, rows in halo.hops:
                bytes_ = rows * others * x.dtype.itemsize
                sent.append(Collective("collective-permute", bytes_, halo.parts))
            shape[k + 1] = halo.rows
        return LayerTraffic(tuple(sent), tuple(sent), self._weights(params))
