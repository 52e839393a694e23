"""Which inputs the windows of a convolution or a pooling see."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np

from parscan_bp.sparsity.pattern import Pattern, on_device
from parscan_bp.types import Array


class Axis(NamedTuple):
    """Windows along one spatial axis.

    Attributes:
      size: number of inputs.
      window: entries of the window.
      stride: step of the window.
      padding: (low, high) zeros around the inputs.
      dilation: distance of the window's entries.
      spread: distance at which the inputs are spread, as in a transposed convolution.
    """

    size: int
    window: int
    stride: int = 1
    padding: tuple[int, int] = (0, 0)
    dilation: int = 1
    spread: int = 1

    @property
    def reach(self) -> int:
        """Entries from the first to the last of the window."""
        return (self.window - 1) * self.dilation + 1

    @property
    def extent(self) -> int:
        """Entries from the first to the last input, spread."""
        return max(self.size - 1, 0) * self.spread + min(self.size, 1)

    @property
    def outputs(self) -> int:
        """Number of windows; less than 1 where none fits."""
        return (sum(self.padding) + self.extent - self.reach) // self.stride + 1

    @property
    def sources(self) -> np.ndarray:
        """(outputs, window), the input position that each entry sees; -1 for a zero.

        Raises:
          ValueError: if the window does not fit.

        Example:
          >>> from parscan_bp.sparsity.windows import Axis
          >>> Axis(3, 2, padding=(1, 0)).sources.tolist()
          [[-1, 0], [0, 1], [1, 2]]
        """
        if self.outputs < 1:
            raise ValueError(
                f"kernel: a window of {self.window} with dilation {self.dilation} does not fit "
                f"into {self.size} inputs with padding {self.padding}"
            )
        at = np.arange(self.outputs)[:, None] * self.stride
        at = at + np.arange(self.window) * self.dilation - self.padding[0]
        inside = (at >= 0) & (at < self.extent) & (at % self.spread == 0)
        return np.where(inside, at // self.spread, -1)


@functools.lru_cache(maxsize=128)
def window_pattern(axes: tuple[Axis, ...]) -> tuple[Pattern, np.ndarray]:
    """The pattern of the transposed Jacobian of windows over several axes.

    Args:
      axes: the spatial axes, in row-major order.

    Returns:
      The pattern, (inputs, outputs) over flat positions, and (nnz,), the flat window entry
      that each of its entries belongs to.

    Raises:
      ValueError: if a window does not fit.

    Example:
      >>> from parscan_bp.sparsity.windows import Axis, window_pattern
      >>> pattern, entry = window_pattern((Axis(3, 2),))
      >>> pattern.as_mask().astype(int).tolist(), entry.tolist()
      ([[1, 0], [1, 1], [0, 1]], [0, 1, 0, 1])
    """
    sources = outputs = entries = np.zeros(1, np.int64)
    for axis in axes:
        out, entry = np.nonzero(axis.sources >= 0)
        sources = _join(sources, axis.size, axis.sources[out, entry])
        outputs = _join(outputs, len(axis.sources), out)
        entries = _join(entries, axis.window, entry)
    shape = (math.prod(a.size for a in axes), math.prod(len(a.sources) for a in axes))
    order = np.lexsort((outputs, sources))
    return Pattern.from_coordinates(sources, outputs, shape), entries[order]


@functools.lru_cache(maxsize=128)
def masked_windows(axes: tuple[Axis, ...], mask: Pattern, groups: int) -> tuple[Pattern, Array]:
    """The pattern of the transposed Jacobian of a convolution with a pruned kernel.

    Args:
      axes: the spatial axes, in row-major order.
      mask: where the kernel is kept, (window entries * in / groups, out) with the input channels
        fastest in the rows.
      groups: number of groups of channels.

    Returns:
      The pattern (inputs, outputs) over positions times channels, channels fastest, and for each
      of its entries the flat index of its number in the kernel.

    Raises:
      ValueError: if a window does not fit.
    """
    spatial, window_entry = window_pattern(axes)
    entries = math.prod(axis.window for axis in axes)
    rows, out = mask.shape
    inner = rows // entries
    # The kept numbers of each window entry stand together: rows of the mask are sorted by it.
    ends = mask.indptr[np.arange(entries + 1) * inner]
    counts = np.diff(ends)[window_entry]
    position = np.repeat(np.arange(spatial.nnz), counts)
    starts = np.cumsum(counts) - counts
    kept = np.arange(position.size) - starts[position] + ends[:-1][window_entry[position]]
    channel_in, channel_out = mask.rows[kept] % inner, mask.indices[kept].astype(np.int64)
    channel_in = channel_in + channel_out // (out // groups) * inner
    shape = (spatial.shape[0] * inner * groups, spatial.shape[1] * out)
    source = spatial.rows[position].astype(np.int64) * (inner * groups) + channel_in
    target = spatial.indices[position].astype(np.int64) * out + channel_out
    order = np.argsort(source * shape[1] + target)
    number = mask.rows[kept].astype(np.int64) * out + channel_out
    pattern = Pattern.from_coordinates(source, target, shape)
    return pattern, on_device(number[order].astype(np.int32))


def _join(outer: np.ndarray, size: int, inner: np.ndarray) -> np.ndarray:
    """Flat positions of all pairs, the inner axis having ``size`` positions."""
    return (outer[:, None] * size + inner).ravel()
