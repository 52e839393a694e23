"""Layers whose output channels are divided: the 1.5D product, and convolutions alike."""

from __future__ import annotations

import dataclasses
from typing import Any, final

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from parscan_bp.layers import Layer
from parscan_bp.parallel.grids.layers.base import Divided, check_types_vary
from parscan_bp.parallel.grids.layout import AxisBlocks, padded
from parscan_bp.parallel.grids.placing import cut
from parscan_bp.parallel.grids.traffic import Collective, LayerTraffic
from parscan_bp.types import Array


@final
@dataclasses.dataclass(frozen=True)
class ModelParallel(Divided):
    """Y = gather of W_p X over the model's devices, each of which holds some rows W_p of W.

    In the paper's letters W is d_i x d_(i-1) and X is d_(i-1) x B / P_c; here activations are
    (batch, *spatial, channels), and the last axis of the parameters is divided. The value takes an
    all-gather of Y over the model's axes; the cotangent of the input, dX = sum_p W_p^T dY_p, an
    all-reduce over them; that of the weights one over the batch's axes, of 1 / P_r of them.

    Where the channels are no multiple of the devices, the last ones hold padding, which is
    gathered, too, and cut off.

    Args:
      layer: `Linear`, `Conv`, `ConvTranspose` or another layer with `Layer.channels_apart` and
        an argument ``channels``; of groups, a device has some or a part of one.
      layout: how its input, output and parameters lie.

    Raises:
      NotImplementedError: if the layer's channels are not made one by one, if its kernel has a
        mask, or if groups of channels would be cut across; by `apply`, inside
        ``jax.shard_map(check_vma=False)``.

    Source: Gholami et al. 2018, figure 5 and eq. 8; of a convolution, eq. 3.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jax.sharding import Mesh, PartitionSpec as P
      >>> from parscan_bp.layers import Linear
      >>> from parscan_bp.parallel import Layout, ModelParallel, Split
      >>> mesh = Mesh(jax.devices()[:1], "model")
      >>> layer = ModelParallel(Linear(4, bias=False), Layout(model=Split(("model",), (1,))))
      >>> specs = {"in_specs": (P(None, "model"), P()), "out_specs": P()}
      >>> run = jax.shard_map(lambda k, x: layer.apply({"kernel": k}, x), mesh=mesh, **specs)
      >>> run(jnp.ones((3, 4)), jnp.ones((2, 3))).tolist()
      [[3.0, 3.0, 3.0, 3.0], [3.0, 3.0, 3.0, 3.0]]
    """

    def __post_init__(self):
        layer: Any = self.layer
        groups, parts = self._groups, self.layout.model.parts
        if not isinstance(self.layer, Layer) or not layer.channels_apart:
            raise NotImplementedError(
                f"layer: {layer} has no model-parallel form: its output channels are not made one "
                "by one"
            )
        if getattr(layer, "mask", None) is not None:
            raise NotImplementedError(f"layer: {layer} with a mask has no model-parallel form")
        if groups > 1 and (layer.channels % parts or (groups % parts and parts % groups)):
            raise NotImplementedError(
                f"layer: {layer} over {parts} devices: groups={groups} of its "
                f"{layer.channels} channels would be cut across; one of the two numbers has to "
                "be a multiple of the other, and the channels of the devices"
            )

    @property
    def _groups(self) -> int:
        return getattr(self.layer, "groups", 1)

    @property
    def _channels(self) -> AxisBlocks:
        return AxisBlocks(self.layer.channels, self.layout.model.parts)  # type: ignore[attr-defined]

    @property
    def part(self) -> Layer:
        """The layer that makes the channels of one device."""
        fields = {"channels": self._channels.block}
        if self._groups > 1:
            fields["groups"] = max(1, self._groups // self.layout.model.parts)
        return dataclasses.replace(self.layer, **fields)

    def apply(self, params, x):
        model = self.layout.model
        if not model.axes:
            return self.layer.apply(params, x)
        check_types_vary(type(self).__name__, model.axes)
        y = self.part.apply(self._without_padding(params), self._seen(x))
        y = lax.all_gather(y, model.axes, axis=y.ndim - 1, tiled=True, to="invarying")
        return cut(y, y.ndim - 1, self._channels.size)

    def _without_padding(self, params: Any) -> Any:
        """With zeros for the channels that are padding, whatever an optimiser made of them."""
        if not self._channels.uneven:
            return params
        block, size = self._channels.block, self._channels.size
        there = self.layout.model.index() * block + jnp.arange(block) < size
        return jax.tree.map(lambda a: jnp.where(there, a, 0), params)

    def _seen(self, x: Array) -> Array:
        """The input channels of this device's groups."""
        if self._groups == 1:
            return x
        parts, each = self.layout.model.parts, x.shape[-1] // self._groups
        seen = max(1, self._groups // parts)
        first = self.layout.model.index() * self._groups // parts
        return lax.dynamic_slice_in_dim(x, first * each, seen * each, x.ndim - 1)

    def placed(self, params):
        size, whole = self._channels.size, self._channels.padded
        for path, leaf in jax.tree_util.tree_leaves_with_path(params):
            if jnp.shape(leaf)[-1:] not in ((size,), (whole,)):
                raise ValueError(
                    f"{jax.tree_util.keystr(path)} got shape {jnp.shape(leaf)}; the {size} "
                    f"channels of {self.layer} are wanted as the last axis"
                )
        return jax.tree.map(lambda a: padded(a, a.ndim - 1, whole), params)

    def collected(self, params):
        return jax.tree.map(lambda a: cut(a, a.ndim - 1, self._channels.size), params)

    def spec(self, leaf):
        return PartitionSpec(*[None] * (leaf.ndim - 1), self.layout.model.axes or None)

    def traffic(self, params, x):
        parts = self.layout.model.parts
        made = jax.eval_shape(self.part.apply, params, self._seen_type(x))
        gathered = made.size * parts * made.dtype.itemsize
        return LayerTraffic(
            forward=(Collective("all-gather", gathered, parts),),
            to_input=(Collective("all-reduce", x.size * x.dtype.itemsize, parts),),
            to_params=self._weights(params),
        )

    def _seen_type(self, x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        seen = max(1, self._groups // self.layout.model.parts)
        return jax.ShapeDtypeStruct((*x.shape[:-1], x.shape[-1] // self._groups * seen), x.dtype)
