"""What the programs of a divided stack send and hold, layer by layer, before they are compiled."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from parscan_bp.devices import Link
from parscan_bp.parallel.grids.layers.base import Divided
from parscan_bp.parallel.grids.stack import LayerPlace, Stack
from parscan_bp.parallel.grids.traffic import Collective, totals
from parscan_bp.trees import nbytes
from parscan_bp.types import PyTree


@dataclasses.dataclass(frozen=True)
class LayerCost:
    """One layer of a divided stack on one device.

    Attributes:
      name: "0 Conv", or what is redistributed.
      forward: the collectives of its value.
      backward: those of the cotangents.
      weights: bytes of its parameters.
      activation: bytes of its input, which the backward pass reads.
      specs: the PartitionSpec of each leaf of its parameters.
    """

    name: str
    forward: tuple[Collective, ...]
    backward: tuple[Collective, ...]
    weights: int
    activation: int
    specs: PyTree

    def bytes_sent(self, direction: str) -> dict[str, int]:
        """Bytes by kind of "forward" or "backward", as the compiled program shows them."""
        return totals(getattr(self, direction))


@dataclasses.dataclass(frozen=True)
class SentBytes:
    """What is sent and held in training, for one machine.

    The bytes are those of the collectives' results on one device in the compiled program. They
    differ from the equations': results are whole where the equations count (P - 1) / P of them;
    a halo has k - s rows on both sides where they count floor(k / 2); biases are there; blocks and
    channels are padded where they do not divide evenly.

    Args:
      alpha: latency in seconds.
      beta: seconds a byte.
    """

    alpha: float
    beta: float

    @classmethod
    def of(cls, link: Link) -> SentBytes:
        """Where messages go over a link."""
        return cls(link.latency, 1 / link.bandwidth)

    def rows(self, stack: Stack, batch: int, dtype: Any = jnp.float32) -> list[LayerCost]:
        """Each layer of the stack in turn.

        Args:
          stack: divided layers.
          batch: B, whole.
          dtype: of activations and parameters.

        Raises:
          ValueError: if the batch is no multiple of a grid's ``data``.
        """
        found, moves = [], False
        for place in stack.places:
            found.append(self.row(place, dict(stack.axes), batch, moves, dtype))
            moves = moves or found[-1].weights > 0
        return found

    def row(
        self,
        place: LayerPlace,
        axes: Mapping[str, int],
        batch: int,
        input_moves: bool,
        dtype: Any = jnp.float32,
    ) -> LayerCost:
        """One layer.

        Args:
          place: where it runs.
          axes: names and sizes of the mesh's axes.
          batch: B, whole.
          input_moves: whether the cotangent of its input is wanted: a layer before it has
            parameters.
          dtype: of activations and parameters.
        """
        params, specs = local_params(place, axes, dtype)
        shape = place.layout.local_shape(batch, place.features)
        x = jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))
        sent = place.layer.traffic(params, x)
        backward = sent.backward(input_moves)
        return LayerCost(_name(place), sent.forward, backward, nbytes(params), nbytes(x), specs)

    def seconds(self, rows: Iterable[LayerCost], direction: str = "both") -> float:
        """Of all collectives one after the other; "forward", "backward" or "both"."""
        names = ("forward", "backward") if direction == "both" else (direction,)
        sent = (one for row in rows for name in names for one in getattr(row, name))
        return sum(one.seconds(self.alpha, self.beta) for one in sent)

    @staticmethod
    def memory(rows: Iterable[LayerCost], copies: int = 2) -> int:
        """Bytes on one device: what the backward pass reads, and the parameters.

        Args:
          rows: see `rows`.
          copies: of the parameters: they and their gradients, and what an optimiser keeps.

        Source: Gholami et al. 2018, section 4.
        """
        return sum(row.activation + copies * row.weights for row in rows)


def local_params(place: LayerPlace, axes: Mapping[str, int], dtype: Any) -> tuple[PyTree, PyTree]:
    """The types of a layer's parameters as one device holds them, and their PartitionSpecs."""
    if not isinstance(place.layer, Divided):
        return None, None
    layer = place.layer
    init = functools.partial(layer.init, features=place.features, dtype=dtype)
    whole = jax.eval_shape(lambda key: layer.placed(init(key)), jax.random.key(0))
    specs = jax.tree.map(layer.spec, whole)
    return jax.tree.map(functools.partial(_part, axes), whole, specs), specs


def _part(axes: Mapping[str, int], leaf: Any, spec: Any) -> jax.ShapeDtypeStruct:
    shape = list(leaf.shape)
    for k, part in enumerate(spec):
        names = (part,) if isinstance(part, str) else part or ()
        shape[k] //= math.prod(axes[name] for name in names)
    return jax.ShapeDtypeStruct(tuple(shape), leaf.dtype)


def _name(place: LayerPlace) -> str:
    if not isinstance(place.layer, Divided):
        return "redistribute"
    return f"{place.origin} {type(place.layer.layer).__name__}"
