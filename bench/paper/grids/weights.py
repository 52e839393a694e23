"""The layers with weights of a network, as the paper's equations see them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from parscan_bp.layers.registry import as_stack
from parscan_bp.layers.stack import sizes_of


@dataclasses.dataclass(frozen=True)
class WeightLayer:
    """A convolution or a fully connected layer.

    A fully connected layer of a flattened image is a convolution as large as the image, k_h = X_H
    and k_w = X_W (section 2.4).

    Attributes:
      position: in the list of layers.
      name: "0 Conv".
      weights: |W|, numbers of its kernel.
      inputs: X_H, X_W, X_C, of a flattened image those of the image; else 1 where there are none.
      outputs: Y_H, Y_W, Y_C, before any pooling.
      window: k_h, k_w.
    """

    position: int
    name: str
    weights: int
    inputs: tuple[int, int, int]
    outputs: tuple[int, int, int]
    window: tuple[int, int]

    @property
    def connected(self) -> bool:
        """Whether it is fully connected."""
        return self.window == self.inputs[:2] and self.outputs[:2] == (1, 1)

    @property
    def d_in(self) -> int:
        """d_(i-1), numbers of the input."""
        return self.inputs[0] * self.inputs[1] * self.inputs[2]

    @property
    def d_out(self) -> int:
        """d_i, numbers of the output."""
        return self.outputs[0] * self.outputs[1] * self.outputs[2]


def weight_layers(layers: Sequence[Any], features: Sequence[int]) -> list[WeightLayer]:
    """Those of a stack whose kernels are products: `Layer.channels_apart`.

    Args:
      layers: what `parscan_bp.layers.as_layer` takes.
      features: shape of one input.

    Raises:
      ValueError: if an input has more than two spatial axes.

    Source: Gholami et al. 2018, eq. 2.

    Example:
      >>> from parscan_bp.layers import Conv, Flatten, Linear
      >>> from bench.paper.grids.weights import weight_layers
      >>> rows = weight_layers([Conv(8, (3, 3)), Flatten(), Linear(10)], (8, 8, 3))
      >>> [(row.name, row.weights, row.d_in, row.d_out) for row in rows]
      [('0 Conv', 216, 192, 512), ('2 Linear', 5120, 512, 10)]
    """
    found: list[WeightLayer] = []
    image: tuple[int, ...] = tuple(features)
    stack = as_stack(layers)
    for k, (layer, (params, x, y)) in enumerate(zip(stack, sizes_of(stack, image), strict=True)):
        if layer.channels_apart:
            sizes = x.shape[1:-1]
            if len(sizes) > 2:
                raise ValueError(
                    f"layers[{k}]: got an input of spatial sizes {sizes}; the equations are of two"
                )
            flat = x.ndim == 2
            shape = image if flat and math.prod(image) == x.shape[1] else x.shape[1:]
            windows = layer.windows(sizes) or ()
            window = shape[:-1] if flat else tuple(axis.window for axis in windows)
            found.append(
                WeightLayer(
                    k,
                    f"{k} {type(layer).__name__}",
                    params["kernel"].size,
                    _image(shape),
                    _image(y.shape[1:]),
                    _two(window),
                )
            )
        image = y.shape[1:] if y.ndim > 2 or layer.channels_apart else image
    return found


def _two(values: Sequence[int]) -> tuple[int, int]:
    first, second = (*values, 1, 1)[:2]
    return first, second


def _image(shape: Sequence[int]) -> tuple[int, int, int]:
    return (*_two(shape[:-1]), shape[-1])
