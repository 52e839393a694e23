"""What lies between two layers with different grids: an activation changes its place."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, final

import jax
from jax import lax

from parscan_bp.parallel.grids.layers.base import ParallelLayer, check_types_vary
from parscan_bp.parallel.grids.layout import (
    AxisBlocks,
    Layout,
    Split,
    block_of,
    by_axes_of_all,
    padded,
)
from parscan_bp.parallel.grids.traffic import Collective, LayerTraffic
from parscan_bp.types import Array


@final
@dataclasses.dataclass(frozen=True)
class Redistribute(ParallelLayer):
    """y = x, which lay as ``before`` and then lies as ``after``.

    Mesh axes that divide the batch before and the domain after, or the other way round, exchange
    their blocks all to all. Else what is divided in another way is gathered (eq. 6), and what is
    to be divided is cut: a gather's cotangent is cut, and sends nothing; a cut's cotangent is an
    all-reduce.

    Args:
      before, after: layouts on one mesh, of which the batch's axes of one begin with the other's.
      features: (*spatial, channels) or (size,) of the whole activation.

    Raises:
      NotImplementedError: by `adjoint_operator`: entries of the batch move between devices.

    Source: Gholami et al. 2018, eq. 6.

    Example:
      >>> from parscan_bp.parallel import Layout, Redistribute, Split
      >>> data = Layout(data=Split(("data", "data_height"), (4, 2)))
      >>> domain = Layout(Split(("data",), (4,)), (Split(("data_height",), (2,)),))
      >>> Redistribute(data, domain, (32, 32, 3)).exchanges
      (0,)
    """

    before: Layout
    after: Layout
    features: tuple[int, ...]

    entries_apart: ClassVar = False

    @property
    def exchanges(self) -> tuple[int, ...]:
        """The spatial axes whose blocks are exchanged for parts of the batch; none if by gather."""
        few, many = sorted((self.before, self.after), key=lambda lies: len(lies.data.axes))
        if many.divides_domain or not few.divides_domain:
            return ()
        divided = [k for k, split in enumerate(few.domain) if split.axes]
        moved = tuple(axis for k in divided for axis in few.domain[k].axes)
        return tuple(divided) if many.data.axes == few.data.axes + moved else ()

    @property
    def _kept(self) -> int:
        """How many of the first axes divide the batch before and after."""
        shared = zip(self.before.data.axes, self.after.data.axes, strict=False)
        return sum(a == b for a, b in shared)

    @property
    def _gathers(self) -> list[tuple[int, Split]]:
        """The dimensions that are gathered, and the division that ends."""
        domain = enumerate(self.before.domain, start=1)
        found = [(k, split) for k, split in domain if split != self.after.spatial(k - 1)]
        found.append((0, self.before.data.behind(self._kept)))
        return [(k, split) for k, split in found if split.axes]

    @property
    def _cuts(self) -> list[tuple[int, Split]]:
        """The dimensions that are cut, and the division that begins."""
        domain = enumerate(self.after.domain, start=1)
        found = [(0, self.after.data.behind(self._kept))]
        found += [(k, split) for k, split in domain if split != self.before.spatial(k - 1)]
        return [(k, split) for k, split in found if split.axes]

    def apply(self, params, x):
        axes = by_axes_of_all(self.before.samples, self.after.samples).axes
        if axes:
            check_types_vary("Redistribute", axes)
        return self._exchanged(x) if self.exchanges else self._cut(self._gathered(x))

    @property
    def _spreads(self) -> bool:
        """Whether parts of the batch become blocks of the domain."""
        return self.after.divides_domain

    def _exchanged(self, x: Array) -> Array:
        domain = self.after.domain if self._spreads else self.before.domain
        # The batch's last axis moves first, and comes back last.
        for k in reversed(self.exchanges) if self._spreads else self.exchanges:
            split, size = domain[k], self.features[k]
            if self._spreads:
                x = padded(x, k + 1, AxisBlocks(size, split.parts).padded)
                x = lax.all_to_all(x, split.axes, k + 1, 0, tiled=True)
            else:
                x = lax.all_to_all(x, split.axes, 0, k + 1, tiled=True)
                x = lax.slice_in_dim(x, 0, size, axis=k + 1)
        return x

    def _gathered(self, x: Array) -> Array:
        for dimension, split in self._gathers:
            x = lax.all_gather(x, split.axes, axis=dimension, tiled=True, to="invarying")
            if dimension:  # the blocks' padding
                x = lax.slice_in_dim(x, 0, self.features[dimension - 1], axis=dimension)
        return x

    def _cut(self, x: Array) -> Array:
        if not self._cuts:
            return x
        new = by_axes_of_all(*(split for _, split in self._cuts))
        # At once: the cotangent is summed over all of them in one all-reduce.
        x = lax.pcast(x, new.axes, to="varying")
        for dimension, split in self._cuts:
            x = block_of(x, dimension, split)
        return x

    def adjoint_operator(self, params, x, y):
        raise NotImplementedError(
            "Redistribute moves entries of the batch between devices: no Jacobian per entry "
            "exists; a parallel.Stack cuts its chains there"
        )

    def traffic(self, params, x):
        if self.exchanges:
            sent = self._exchange_traffic(x)
            return LayerTraffic(sent, sent)
        forward, shape = [], list(x.shape)
        for dimension, split in self._gathers:
            shape[dimension] *= split.parts
            size = math.prod(shape) * x.dtype.itemsize
            forward.append(Collective("all-gather", size, split.parts))
            if dimension:
                shape[dimension] = self.features[dimension - 1]
        if not self._cuts:
            return LayerTraffic(tuple(forward))
        group = by_axes_of_all(*(split for _, split in self._cuts)).parts
        whole = Collective("all-reduce", math.prod(shape) * x.dtype.itemsize, group)
        return LayerTraffic(tuple(forward), (whole,))

    def _exchange_traffic(self, x: jax.ShapeDtypeStruct) -> tuple[Collective, ...]:
        sent, shape = [], list(x.shape)
        domain = self.after.domain if self._spreads else self.before.domain
        for k in reversed(self.exchanges) if self._spreads else self.exchanges:
            split = domain[k]
            blocks = AxisBlocks(self.features[k], split.parts)
            if self._spreads:
                shape[k + 1] = blocks.padded
            sent.append(Collective("all-to-all", math.prod(shape) * x.dtype.itemsize, split.parts))
            if self._spreads:
                shape[0], shape[k + 1] = shape[0] * split.parts, blocks.block
            else:
                shape[0], shape[k + 1] = shape[0] // split.parts, blocks.size
        return tuple(sent)
