"""The geometry of sliding windows: sizes, strides, padding, dilation."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import jax.numpy as jnp
from jax import lax

from parscan_bp.arguments import as_int, described
from parscan_bp.layers.base import Pairs
from parscan_bp.sparsity.windows import Axis
from parscan_bp.types import Array

PerAxis = int | Sequence[int]
"""One int for each spatial axis, or one for all."""
Padding = str | int | Sequence[int | tuple[int, int]]
"""A name, one width for all sides, or for each axis a width or a (low, high) pair."""

PADDINGS = ("SAME", "SAME_LOWER", "VALID")


@dataclasses.dataclass(frozen=True)
class Window:
    """A window that slides over any number of spatial axes; one entry per axis in each field.

    Attributes:
      sizes: entries of the window.
      strides: steps from one output to the next.
      padding: one of `PADDINGS`, or (low, high).
      dilation: distance of the window's entries.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    padding: str | Pairs
    dilation: tuple[int, ...]

    @classmethod
    def of(
        cls, sizes: Sequence[int], strides: PerAxis, padding: Padding, dilation: PerAxis
    ) -> Window:
        """The window of a layer's options.

        Raises:
          TypeError, ValueError: naming the option that is wrong.
        """
        if not isinstance(sizes, Sequence) or isinstance(sizes, str):
            raise TypeError(
                f"window: got {described(sizes)}; a sequence of sizes, one for each spatial axis, "
                "is wanted, such as (3, 3)"
            )
        rank = len(sizes)
        return cls(
            per_axis("window", sizes, rank),
            per_axis("strides", strides, rank),
            _checked_padding(padding, rank),
            per_axis("dilation", dilation, rank),
        )

    @property
    def fields(self) -> dict:
        """The options in their plain form, hashable."""
        return {
            "window": self.sizes,
            "strides": self.strides,
            "padding": self.padding,
            "dilation": self.dilation,
        }

    @property
    def reach(self) -> tuple[int, ...]:
        """Entries from the first to the last of the window."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.sizes, self.dilation, strict=True))

    def pads(self, spatial: tuple[int, ...]) -> Pairs:
        """(low, high) for each axis of an input of these spatial sizes.

        Raises:
          ValueError: if there are more or fewer sizes, or the window does not fit into the padded
            input.
        """
        self._check_rank(spatial)
        if isinstance(self.padding, str):
            pairs: Pairs = tuple(
                lax.padtype_to_pads(spatial, self.reach, self.strides, self.padding)
            )
        else:
            pairs = self.padding
        return self._fitting(spatial, pairs)

    def axes(self, spatial: tuple[int, ...]) -> tuple[Axis, ...]:
        """The windows along each axis of an input of these spatial sizes."""
        rows = zip(
            spatial, self.sizes, self.strides, self.pads(spatial), self.dilation, strict=True
        )
        return tuple(Axis(*row) for row in rows)

    def transposed_axes(self, spatial: tuple[int, ...]) -> tuple[Axis, ...]:
        """The same of a transposed convolution: windows with stride 1 over a spread input."""
        pads = self.transposed_pads(spatial)
        rows = zip(spatial, self.sizes, pads, self.dilation, self.strides, strict=True)
        return tuple(Axis(n, k, 1, pad, d, s) for n, k, pad, d, s in rows)

    def entries(self, x: Array, pads: Pairs, fill: float) -> Iterator[Array]:
        """For every window entry, in row-major order, what it sees: (batch, *outputs, channels)."""
        widths = ((0, 0), *pads, (0, 0))
        padded = jnp.pad(x, widths, constant_values=jnp.asarray(fill, x.dtype))
        sizes = zip(padded.shape[1:-1], self.reach, self.strides, strict=True)
        counts = [(size - reach) // stride + 1 for size, reach, stride in sizes]
        for entry in itertools.product(*map(range, self.sizes)):
            take = [slice(None)]
            each = zip(entry, counts, self.strides, self.dilation, strict=True)
            for at, count, stride, step in each:
                take.append(slice(at * step, at * step + (count - 1) * stride + 1, stride))
            yield padded[tuple(take)]

    def _check_rank(self, spatial: tuple[int, ...]) -> None:
        if len(spatial) != len(self.sizes):
            raise ValueError(
                f"x: got spatial sizes {spatial}; a window of sizes {self.sizes} wants as many"
            )

    def _fitting(self, spatial: tuple[int, ...], pairs: Pairs) -> Pairs:
        for size, reach, (low, high) in zip(spatial, self.reach, pairs, strict=True):
            if size + low + high < reach:
                raise ValueError(
                    f"x: got spatial sizes {spatial}; a window that reaches over {self.reach} "
                    f"does not fit into them with padding {pairs}"
                )
        return pairs

    def transposed_pads(self, spatial: tuple[int, ...]) -> Pairs:
        """(low, high) around the spread input of a transposed convolution.

        As `jax.lax.conv_transpose`: "SAME" makes outputs of strides times the input's sizes,
        "VALID" all that the window reaches.

        Raises:
          ValueError: if the padding is not defined for it, or the window does not fit.
        """
        self._check_rank(spatial)
        if self.padding == "SAME_LOWER":
            raise ValueError("padding: 'SAME_LOWER' is not defined for a transposed convolution")
        if not isinstance(self.padding, str):
            spread = tuple((n - 1) * s + 1 for n, s in zip(spatial, self.strides, strict=True))
            return self._fitting(spread, self.padding)
        pairs = []
        for reach, stride in zip(self.reach, self.strides, strict=True):
            total = reach + stride - 2
            if self.padding == "VALID":
                total, low = total + max(reach - stride, 0), reach - 1
            else:
                low = reach - 1 if stride > reach - 1 else -(-total // 2)
            pairs.append((low, total - low))
        return tuple(pairs)

    def spatial_sizes(self, what: str, x: Array) -> tuple[int, ...]:
        """The spatial sizes of (batch, *spatial, channels).

        Raises:
          ValueError: if ``x`` has another number of axes.
        """
        rank = len(self.sizes)
        if x.ndim != rank + 2:
            raise ValueError(
                f"x: got shape {tuple(x.shape)}; {what} with {rank} spatial axes wants "
                f"{rank + 2} axes: batch, {rank} spatial, channels"
            )
        return tuple(x.shape[1:-1])


def per_axis(name: str, value: PerAxis, rank: int) -> tuple[int, ...]:
    """One positive int for each of ``rank`` axes; an int stands for all of them.

    Raises:
      TypeError, ValueError: if it is something else.
    """
    values = tuple(value) if isinstance(value, Sequence) else (value,) * rank
    if len(values) != rank:
        raise ValueError(f"{name}: got {value!r}; one for each of {rank} axes is wanted")
    return tuple(as_int(name, v) for v in values)


def _checked_padding(padding: Padding, rank: int) -> str | Pairs:
    if isinstance(padding, str):
        if padding not in PADDINGS:
            raise ValueError(
                f"padding: got {padding!r}, which is not supported; one of "
                f"{', '.join(PADDINGS)}, an int, or (low, high) for each axis is wanted"
            )
        return padding
    sides = tuple(padding) if isinstance(padding, Sequence) else (padding,) * rank
    pairs = [tuple(side) if isinstance(side, Sequence) else (side, side) for side in sides]
    if len(pairs) != rank or any(len(pair) != 2 for pair in pairs):
        raise ValueError(f"padding: got {padding!r}; (low, high) for each of {rank} axes is wanted")
    return tuple((as_int("padding", low, 0), as_int("padding", high, 0)) for low, high in pairs)
