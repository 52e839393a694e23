"""A stack of layers divided over a mesh, each layer by a grid of its own."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from parscan_bp.arguments import as_array, as_int, check_bool, check_concrete, described
from parscan_bp.chain import chain
from parscan_bp.layers import Layer, activations
from parscan_bp.layers.registry import as_stack
from parscan_bp.layers.stack import checked_params, init_stack, sizes_of
from parscan_bp.parallel.grids.grid import Grid, as_devices, layout_of, mesh_axes, mesh_of
from parscan_bp.parallel.grids.layers.base import (
    DataParallel,
    Divided,
    Divisible,
    ParallelLayer,
    check_types_vary,
)
from parscan_bp.parallel.grids.layers.domain import DomainParallel
from parscan_bp.parallel.grids.layers.model import ModelParallel
from parscan_bp.parallel.grids.layers.redistribute import Redistribute
from parscan_bp.parallel.grids.layout import Layout, padded
from parscan_bp.parallel.grids.placing import cut, laid, mesh_here, put_on_mesh
from parscan_bp.solvers import Solver
from parscan_bp.types import Array, PyTree


@dataclasses.dataclass(frozen=True)
class LayerPlace:
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

    Where types say how arrays lie, under `jax.set_mesh` of an explicit mesh with the `axes` of the
    stack, it runs on that mesh, and its value is typed as the last grid says; else it runs on one
    of its own, whose axes are the compiler's.

    An output whose rows are no multiple of their parts is whole along them: no array is divided so.

    Attributes:
      whole: the undivided layers.
      places: the layers as they run, those that redistribute among them.
      axes: names and sizes of the mesh's axes, in their order.
      features: of the output.
      layout: of the output.
      devices: what it runs on; ``None`` is `jax.devices`.
    """

    whole: tuple[Layer, ...]
    places: tuple[LayerPlace, ...]
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
        """Parameters of the undivided stack, copied to the devices, padded where they have to be.

        Padding has no gradient and reaches nothing. But it is there: an optimiser that takes means
        over a parameter, as `optax.adafactor` does, counts its zeros.
        """
        divided = self._by_layer(params, lambda layer, own: layer.placed(own))
        return put_on_mesh(divided, self.specs(divided), self.mesh)

    def collect(self, params: Sequence[PyTree]) -> list[PyTree]:
        """Parameters or gradients as the undivided stack has them."""
        return self._by_layer(params, lambda layer, own: layer.collected(own))

    def _by_layer(
        self, params: Sequence[PyTree], change: Callable[[Divided, PyTree], PyTree]
    ) -> list[PyTree]:
        """What is made of the parameters of each layer, errors saying of which."""
        made = []
        for k, own in enumerate(checked_params(self.whole, params)):
            try:
                made.append(change(self._own(k), own))
            except ValueError as error:
                raise ValueError(f"params[{k}]: {error}") from error
        return made

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
          TypeError: if an argument is none such.
          ValueError: if sizes do not fit, or the batch is no multiple of a grid's ``data``; if
            parameters were not placed; inside of `jax.shard_map`, or on another mesh by
            `jax.set_mesh`.
        """
        check_concrete("x", x)
        params = [jax.tree.map(jnp.asarray, own) for own in checked_params(self.whole, params)]
        x = as_array("x", x)
        first = self.places[0]
        if tuple(x.shape[1:]) != first.features:
            raise ValueError(
                f"x: got shape {tuple(x.shape)}; (batch, {', '.join(map(str, first.features))}) "
                "is wanted"
            )
        for place in self.places:
            place.layout.local_shape(x.shape[0], place.features)
        specs, mesh = self.specs(params), mesh_here(self.mesh, (params, x))
        self._check_placed(params, specs)
        y = jax.shard_map(
            functools.partial(self.on_device, solver=solver),
            mesh=mesh,
            in_specs=(specs, first.layout.spec(x.ndim)),
            out_specs=self.layout.spec(len(self.features) + 1),
        )(laid(params, specs, mesh), _in_blocks(x, first.layout, mesh))
        for k, size in enumerate((x.shape[0], *self.features)):
            y = cut(y, k, size)
        return y

    def _check_placed(self, params: Sequence[PyTree], specs: Sequence[PyTree]) -> None:
        sizes = dict(self.axes)

        def check(path, leaf, spec):
            for k, part in enumerate(spec):
                names = (part,) if isinstance(part, str) else part or ()
                parts = math.prod(sizes[name] for name in names)
                if k >= leaf.ndim or leaf.shape[k] % parts:
                    raise ValueError(
                        f"params{jax.tree_util.keystr(path)}: got shape {leaf.shape}, whose "
                        f"axis {k} {parts} devices do not divide; what the stack's place or init "
                        "returns is wanted"
                    )

        jax.tree_util.tree_map_with_path(check, list(params), list(specs))

    def on_device(
        self, params: Sequence[PyTree], x: Array, *, solver: Solver | None = None
    ) -> Array:
        """The value on one device, of its part of x; inside `jax.shard_map` on `mesh`.

        Raises:
          ValueError: outside of it.
          NotImplementedError: inside ``jax.shard_map(check_vma=False)`` or `jax.pmap`.
        """
        check_types_vary("Stack.on_device", tuple(name for name, _ in self.axes))
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
      TypeError: if a layer, a grid or a device is none, or ``features`` no shape.
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
    whole, features = as_stack(layers), as_features(features)
    each = grid_of_each(grids, len(whole))
    axes = mesh_axes(each)
    places: list[LayerPlace] = []
    sizes, before = sizes_of(whole, features), None
    for k, (layer, grid, size) in enumerate(zip(whole, each, sizes, strict=True)):
        layout, own = layout_of(grid, axes), tuple(size.x.shape[1:])
        try:
            form = divided_layer(layer, layout, own, overlap)
        except (NotImplementedError, ValueError) as error:
            raise type(error)(f"layers[{k}] on the grid {grid}: {error}") from error
        if before is not None and (before.data, before.domain) != (layout.data, layout.domain):
            places.append(LayerPlace(Redistribute(before, layout, own), None, own, before))
        places.append(LayerPlace(form, k, own, layout))
        before = layout
    chosen = None if devices is None else tuple(as_devices(devices))
    stack = Stack(
        whole, tuple(places), tuple(axes.items()), tuple(sizes[-1].y.shape[1:]), layout, chosen
    )
    if devices is not None:
        _ = stack.mesh  # raises now if they do not fit
    return stack


def as_features(features: Any) -> tuple[int, ...]:
    """The shape of one input.

    Raises:
      TypeError, ValueError: if it is no sequence of positive ints.
    """
    if isinstance(features, str) or not isinstance(features, Sequence) or not features:
        raise TypeError(
            f"features: got {described(features)}; the shape of one input is wanted, such as "
            "(32, 32, 3)"
        )
    return tuple(as_int(f"features[{k}]", size) for k, size in enumerate(features))


def grid_of_each(grids: Any, layers: int) -> list[Grid]:
    """The grid of each layer.

    Raises:
      TypeError: if it is neither a grid nor a sequence.
      ValueError: if there are not as many, or no layers.
    """
    if not layers:
        raise ValueError("layers: got none; at least one is wanted")
    if isinstance(grids, Grid):
        return [grids] * layers
    if isinstance(grids, str) or not isinstance(grids, Sequence):
        raise TypeError(
            f"grids: got {described(grids)}; a Grid, or a sequence of one for each layer, is wanted"
        )
    if len(grids) != layers:
        raise ValueError(f"grids: got {len(grids)} for {layers} layers; one for each is wanted")
    return list(grids)


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


def _in_blocks(x: Array, layout: Layout, mesh: Any) -> Array:
    """With the padding of its blocks."""
    blocks = layout.blocks(x.shape[1:-1])
    if any(each.uneven for each in blocks):
        x = laid(x, PartitionSpec(layout.data.axes or None), mesh)
        for k, each in enumerate(blocks, start=1):
            x = padded(x, k, each.padded)
    return laid(x, layout.spec(x.ndim), mesh)
