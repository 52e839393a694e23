"""A stack of layers divided over a mesh, each layer by a grid of its own."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding

from parscan_bp.arguments import as_array, check_bool
from parscan_bp.chain import chain
from parscan_bp.grids.grid import Grid, layout_of, mesh_axes, mesh_of
from parscan_bp.grids.layers.base import DataParallel, Divided, Divisible, ParallelLayer
from parscan_bp.grids.layers.domain import DomainParallel
from parscan_bp.grids.layers.model import ModelParallel
from parscan_bp.grids.layers.redistribute import Redistribute
from parscan_bp.grids.layout import Layout, padded
from parscan_bp.layers import Layer, activations
from parscan_bp.layers.registry import as_stack
from parscan_bp.layers.stack import apply_at, checked_params, init_stack
from parscan_bp.solvers import Solver
from parscan_bp.types import Array, PyTree


@dataclasses.dataclass(frozen=True)
class Place:
    """Where one layer of a stack runs.

    Attributes:
      layer: as each device runs it.
      origin: the position of the layer in the undivided stack; ``None`` of a `Redistribute`.
      features: (*spatial, channels) or (size,) of the whole input.
      layout: how the input lies.
    """

    layer: ParallelLayer
    origin: int | None
    features: tuple[int, ...]
    layout: Layout


@dataclasses.dataclass(frozen=True)
class Stack:
    """Layers divided over the devices of one mesh; made by `divide`.

    A call takes and returns whole arrays, and is differentiated from outside, as by `jax.grad`.
    Its work is one `jax.shard_map`, in which every collective is written down: none is left to
    the compiler.

    Attributes:
      whole: the undivided layers.
      places: the layers as they run, those that redistribute among them.
      axes: names and sizes of the mesh's axes.
      features: of the output.
      layout: of the output.
      devices: what it runs on; ``None`` is `jax.devices`.
    """

    whole: tuple[Layer, ...]
    places: tuple[Place, ...]
    axes: tuple[tuple[str, int], ...]
    features: tuple[int, ...]
    layout: Layout
    devices: tuple[Any, ...] | None = None

    @functools.cached_property
    def mesh(self) -> Mesh:
        """The mesh of devices."""
        return mesh_of(dict(self.axes), self.devices)

    def init(self, key: Array, dtype=float) -> list[PyTree]:
        """Parameters of every layer, divided: those of the undivided stack, placed."""
        return self.place(init_stack(self.whole, key, self.places[0].features, dtype))

    def place(self, params: Sequence[PyTree]) -> list[PyTree]:
        """Parameters of the undivided stack on the devices, padded where they have to be."""
        divided = self._divided(checked_params(self.whole, params))
        put = lambda leaf, spec: jax.device_put(leaf, NamedSharding(self.mesh, spec))  # noqa: E731
        return jax.tree.map(put, divided, self.specs(divided))

    def _divided(self, params: Sequence[PyTree]) -> list[PyTree]:
        return [self._own(k).placed(own) for k, own in enumerate(params)]

    def collect(self, params: Sequence[PyTree]) -> list[PyTree]:
        """Parameters or gradients as the undivided stack has them."""
        return [self._own(k).collected(own) for k, own in enumerate(params)]

    def _own(self, origin: int) -> Divided:
        return next(p.layer for p in self.places if p.origin == origin)  # type: ignore[return-value]

    def specs(self, params: Sequence[PyTree]) -> list[PyTree]:
        """The PartitionSpec of every leaf of the parameters."""
        return [jax.tree.map(self._own(k).spec, own) for k, own in enumerate(params)]

    def __call__(
        self, params: Sequence[PyTree], x: Array, *, solver: Solver | None = None
    ) -> Array:
        """The value of the stack.

        Args:
          params: of every undivided layer, as `place` or `init` returns them.
          x: (batch, *features), whole.
          solver: ``None`` differentiates by JAX's own rules; a solver of `parscan_bp.chain`
            solves for the cotangents of each stretch of layers on one layout of the batch.

        Returns:
          (batch, *features), whole, divided as the last layer's grid says.

        Raises:
          ValueError: if sizes do not fit, or the batch is no multiple of a grid's ``data``.
        """
        params, x = list(checked_params(self.whole, params)), as_array("x", x)
        first = self.places[0]
        if tuple(x.shape[1:]) != first.features:
            raise ValueError(
                f"x: got shape {tuple(x.shape)}; (batch, {', '.join(map(str, first.features))}) "
                "is wanted"
            )
        for place in self.places:
            place.layout.local_shape(x.shape[0], place.features)
        y = jax.shard_map(
            functools.partial(self.on_device, solver=solver),
            mesh=self.mesh,
            in_specs=(self.specs(params), first.layout.spec(x.ndim)),
            out_specs=self.layout.spec(len(self.features) + 1),
        )(params, _in_blocks(x, first.layout))
        return y[tuple(slice(size) for size in (x.shape[0], *self.features))]

    def on_device(
        self, params: Sequence[PyTree], x: Array, *, solver: Solver | None = None
    ) -> Array:
        """The value on one device, of its part of x; inside `jax.shard_map` on `mesh`."""
        if solver is None:
            return activations(
                [place.layer for place in self.places],
                [None if p.origin is None else params[p.origin] for p in self.places],
                x,
            )[-1]
        for apart, places in itertools.groupby(self.places, lambda p: p.layer.entries_apart):
            run = list(places)
            own = [None if p.origin is None else params[p.origin] for p in run]
            if apart:
                x = chain([p.layer for p in run], own, x, solver=solver)
            else:
                x = activations([p.layer for p in run], own, x)[-1]
        return x


def divide(
    layers: Sequence[Any],
    features: Sequence[int],
    grids: Grid | Sequence[Grid],
    *,
    overlap: bool = False,
    devices: Sequence[Any] | None = None,
) -> Stack:
    """A stack of layers, divided by one grid, or each layer by its own.

    Where ``grid.model > 1``, a layer whose channels are made one by one (`Linear`, `Conv`, ...) is
    `ModelParallel`; the others run on the whole channels. Where ``height`` or ``width`` is more
    than 1, a layer is `DomainParallel`. Else it is `DataParallel`. `Redistribute` comes between
    two layers whose inputs lie differently.

    Args:
      layers: what `parscan_bp.layers.as_layer` takes, and `SyncBatchNorm`.
      features: shape of one input, without the batch.
      grids: of the same number of processes; one for all layers, or one for each.
      overlap: see `DomainParallel`; where a layer's blocks allow it.
      devices: as many as there are processes; ``None`` is `jax.devices`.

    Raises:
      TypeError: if a layer or a grid is none.
      ValueError: if the grids do not fit each other, the layers, or the devices.
      NotImplementedError: naming the layer that has no parallel form of this kind.

    Source: Gholami et al. 2018, eq. 6, 8 and 9.

    Example:
      >>> import jax, jax.numpy as jnp, parscan_bp as pb
      >>> from parscan_bp.layers import Conv, Flatten, Linear
      >>> layers = [Conv(8, (3, 3)), jax.nn.relu, Flatten(), Linear(10)]
      >>> grid = pb.parallel.Grid(data=1)
      >>> stack = pb.parallel.divide(layers, (8, 8, 3), grid, devices=jax.devices()[:1])
      >>> params = stack.init(jax.random.key(0))
      >>> loss = lambda params, x: jnp.sum(stack(params, x) ** 2)
      >>> grads = jax.jit(jax.grad(loss))(params, jnp.ones((4, 8, 8, 3)))
      >>> grads[0]["kernel"].shape
      (3, 3, 3, 8)
    """
    check_bool("overlap", overlap)
    whole = as_stack(layers)
    each = [grids] * len(whole) if isinstance(grids, Grid) else list(grids)
    if len(each) != len(whole) or not whole:
        raise ValueError(f"grids: got {len(each)} for {len(whole)} layers; one for each is wanted")
    axes = mesh_axes(each)
    places: list[Place] = []
    before, x = None, jax.ShapeDtypeStruct((1, *features), jnp.float32)
    for k, (layer, grid) in enumerate(zip(whole, each, strict=True)):
        layout, own = layout_of(grid, axes), tuple(x.shape[1:])
        try:
            form = divided_layer(layer, layout, own, overlap)
        except (NotImplementedError, ValueError) as error:
            raise type(error)(f"layers[{k}] on the grid {grid}: {error}") from error
        if before is not None and (before.data, before.domain) != (layout.data, layout.domain):
            places.append(Place(Redistribute(before, layout, own), None, own, before))
        places.append(Place(form, k, own, layout))
        params = jax.eval_shape(functools.partial(layer.init, features=own), jax.random.key(0))
        x = jax.eval_shape(functools.partial(apply_at, k, layer), params, x)
        before = layout
    chosen = None if devices is None else tuple(devices)
    stack = Stack(whole, tuple(places), tuple(axes.items()), tuple(x.shape[1:]), layout, chosen)
    if devices is not None:
        _ = stack.mesh  # raises now if they do not fit
    return stack


def divided_layer(
    layer: Layer, layout: Layout, features: tuple[int, ...], overlap: bool = False
) -> Divided:
    """The form in which a layer runs on inputs of these features that lie so.

    Raises:
      NotImplementedError, ValueError: if it has none.
    """
    spatial = features[:-1]
    if isinstance(layer, Divisible):
        return layer.divided(layout, spatial)
    if layout.divides_domain:
        form = DomainParallel(layer, layout, spatial)
        return dataclasses.replace(form, overlap=overlap and form.can_overlap)
    if layout.model.axes and layer.channels_apart:
        return ModelParallel(layer, layout)
    return DataParallel(layer, layout)


def _in_blocks(x: Array, layout: Layout) -> Array:
    """With the padding of its blocks."""
    for k, blocks in enumerate(layout.blocks(x.shape[1:-1]), start=1):
        x = padded(x, k, blocks.padded)
    return x
