"""How arrays lie on a mesh of devices: which mesh axes divide which of their axes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from parscan_bp.types import Array


@dataclasses.dataclass(frozen=True)
class Split:
    """A division into equal parts over mesh axes, the first of which is the major one.

    Attributes:
      axes: names of mesh axes; none divides nothing.
      sizes: of these axes.
    """

    axes: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()

    @property
    def parts(self) -> int:
        """Number of parts."""
        return math.prod(self.sizes)

    def behind(self, count: int) -> Split:
        """The division by all but the first so many axes."""
        return Split(self.axes[count:], self.sizes[count:])

    def index(self) -> Array | int:
        """Which part is this device's; inside `jax.shard_map`."""
        return lax.axis_index(self.axes) if self.axes else 0


WHOLE = Split()


def by_axes_of_all(*splits: Split) -> Split:
    """The division by the axes of all."""
    axes = (axis for split in splits for axis in split.axes)
    sizes = (size for split in splits for size in split.sizes)
    return Split(tuple(axes), tuple(sizes))


@dataclasses.dataclass(frozen=True)
class AxisBlocks:
    """An axis in equal blocks, one for each part; what the last ones lack is padding.

    Attributes:
      size: entries of the axis.
      parts: number of blocks.

    Example:
      >>> from parscan_bp.parallel.grids.layout import AxisBlocks
      >>> AxisBlocks(13, 4).block, AxisBlocks(13, 4).padded
      (4, 16)
    """

    size: int
    parts: int

    @property
    def block(self) -> int:
        """Entries of a block."""
        return -(-self.size // self.parts)

    @property
    def padded(self) -> int:
        """Entries of all blocks."""
        return self.block * self.parts

    @property
    def uneven(self) -> bool:
        """Whether a block has padding."""
        return self.padded != self.size


@dataclasses.dataclass(frozen=True)
class Layout:
    """How an activation (batch, *spatial, channels) lies, and the parameters that make the next.

    Attributes:
      data: what divides the batch.
      domain: what divides the spatial axes, from the first on; further ones are whole.
      model: what divides the channels of parameters. Activations are the same over its axes.
    """

    data: Split = WHOLE
    domain: tuple[Split, ...] = ()
    model: Split = WHOLE

    def spatial(self, k: int) -> Split:
        """What divides spatial axis k."""
        return self.domain[k] if k < len(self.domain) else WHOLE

    @property
    def divides_domain(self) -> bool:
        """Whether a spatial axis is divided."""
        return any(split.axes for split in self.domain)

    @property
    def samples(self) -> Split:
        """Over what a sum over the batch and the domain goes."""
        return by_axes_of_all(self.data, *self.domain)

    def blocks(self, spatial: Sequence[int]) -> tuple[AxisBlocks, ...]:
        """The blocks of each spatial axis."""
        return tuple(AxisBlocks(size, self.spatial(k).parts) for k, size in enumerate(spatial))

    def spec(self, rank: int) -> PartitionSpec:
        """Of an activation with so many axes."""
        middle = [self.spatial(k).axes or None for k in range(rank - 2)]
        return PartitionSpec(self.data.axes or None, *middle)

    def local_shape(self, batch: int, features: Sequence[int]) -> tuple[int, ...]:
        """The part of an activation (batch, *features) that one device holds.

        Raises:
          ValueError: if the batch cannot be divided evenly.
        """
        if batch % self.data.parts:
            raise ValueError(
                f"batch: got {batch} entries for {self.data.parts} devices along "
                f"{self.data.axes}; a multiple is wanted"
            )
        *spatial, channels = features
        middle = (blocks.block for blocks in self.blocks(spatial))
        return (batch // self.data.parts, *middle, channels)


def block_of(x: Array, dimension: int, split: Split) -> Array:
    """This device's block of an axis, whose end is padded with zeros where it has to be."""
    blocks = AxisBlocks(x.shape[dimension], split.parts)
    if split.parts == 1:
        return x
    x = padded(x, dimension, blocks.padded)
    start = split.index() * blocks.block
    return lax.dynamic_slice_in_dim(x, start, blocks.block, dimension)


def padded(x: Array, dimension: int, size: int) -> Array:
    """With zeros at the end of an axis, so that it has ``size`` entries."""
    widths = [(0, 0)] * x.ndim
    widths[dimension] = (0, size - x.shape[dimension])
    return jnp.pad(x, widths) if size != x.shape[dimension] else x


def without_padding(
    x: Array, spatial: Sequence[int], layout: Layout, fill: Array | int = 0
) -> Array:
    """A block of an activation with ``fill``, along the channels, where it has padding.

    Every layer on a divided domain begins with it: what lies in the padding then reaches nothing,
    and receives a cotangent of zero, whatever a layer makes of it.
    """
    for k, blocks in enumerate(layout.blocks(spatial)):
        if blocks.uneven:
            rows = layout.spatial(k).index() * blocks.block + jnp.arange(blocks.block)
            x = jnp.where(along(rows < blocks.size, k + 1, x.ndim), x, fill)
    return x


def along(values: Array, dimension: int, rank: int) -> Array:
    """A vector as an array with so many axes, along one of them."""
    return values.reshape([-1 if k == dimension else 1 for k in range(rank)])
