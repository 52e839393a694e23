"""`flax.nnx.Linear` and `.Conv` whose output channels are divided over a mesh axis. Needs Flax."""

from __future__ import annotations

from typing import Any

import jax
from flax import nnx
from jax.sharding import Mesh

from parscan_bp.arguments import described
from parscan_bp.layers.traced import traced_layer
from parscan_bp.parallel.grids.layers.model import ModelParallel
from parscan_bp.parallel.grids.layout import WHOLE, Layout, Split
from parscan_bp.parallel.grids.placing import laid, mesh_here, put_on_mesh
from parscan_bp.types import Array


class Linear(nnx.Linear):
    """`flax.nnx.Linear` by the 1.5D product: W is divided over the model, X over the data.

    It is Flax's own layer: arguments, parameters and values are those of Flax, the last up to
    rounding. The kernel's last axis is divided over ``model`` and the batch over ``data``; the
    value takes an all-gather over ``model``, cotangents all-reduces, see
    `parscan_bp.parallel.ModelParallel`.

    Args:
      mesh: of the devices. Axes that are explicit count as such under `jax.set_mesh` alone.
      model: the mesh axis that divides the channels.
      data: the mesh axis that divides the batch, or ``None``.
      others: those of `flax.nnx.Linear`.

    Raises:
      TypeError: if there is no mesh.
      ValueError: if the mesh has no such axis, or both are one; when called, if ``data`` does not
        divide the batch.
      NotImplementedError: when called, if the layer is not y = x W + b (`promote_dtype` of mixed
        types, say), or x has no batch.

    Source: Gholami et al. 2018, figure 5.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from flax import nnx
      >>> import parscan_bp.nnx
      >>> mesh = jax.sharding.Mesh(jax.devices()[:1], "model")
      >>> layer = parscan_bp.nnx.Linear(3, 4, mesh=mesh, data=None, rngs=nnx.Rngs(0))
      >>> layer(jnp.ones((2, 3), "float32")).shape
      (2, 4)
    """

    def __init__(
        self, *args: Any, mesh: Mesh, model: str = "model", data: str | None = "data", **kwargs: Any
    ):
        super().__init__(*args, **kwargs)
        _divide(self, mesh, model, data)

    def __call__(self, inputs: Array, out_sharding: Any = None) -> Array:
        return _call(self, nnx.Linear.__call__, inputs, out_sharding)


class Conv(nnx.Conv):
    """`flax.nnx.Conv` whose filters are divided over a mesh axis, and its inputs by the batch.

    Args:
      mesh, model, data: see `Linear`.
      others: those of `flax.nnx.Conv`.

    Raises:
      TypeError, ValueError, NotImplementedError: as `Linear`; when called, if the convolution is
        none of `parscan_bp.layers.Conv`, such as one with circular padding, or explicit axes divide
        its kernel.

    Source: Gholami et al. 2018, eq. 3.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from flax import nnx
      >>> import parscan_bp.nnx
      >>> mesh = jax.sharding.Mesh(jax.devices()[:1], "model")
      >>> layer = parscan_bp.nnx.Conv(3, 4, (3, 3), mesh=mesh, data=None, rngs=nnx.Rngs(0))
      >>> layer(jnp.ones((2, 8, 8, 3), "float32")).shape
      (2, 8, 8, 4)
    """

    def __init__(
        self, *args: Any, mesh: Mesh, model: str = "model", data: str | None = "data", **kwargs: Any
    ):
        super().__init__(*args, **kwargs)
        _divide(self, mesh, model, data)

    def __call__(self, inputs: Array, out_sharding: Any = None) -> Array:
        if any(jax.typeof(self.kernel.get_value()).sharding.spec):
            raise NotImplementedError(
                "Conv: Flax's convolution takes no kernel that is divided by its type; a mesh "
                "that is not explicit, or parallel.divide, is wanted"
            )
        return _call(self, nnx.Conv.__call__, inputs, out_sharding)


def _divide(module: Any, mesh: Any, model: str, data: str | None) -> None:
    """Notes how the module lies, and puts its parameters there."""
    if not isinstance(mesh, Mesh):
        raise TypeError(f"mesh: got {described(mesh)}; a jax.sharding.Mesh is wanted")
    for name, axis in (("model", model), ("data", data)):
        if axis is not None and axis not in mesh.shape:
            raise ValueError(f"{name}: got {axis!r}; the mesh has the axes {mesh.axis_names}")
    if data == model:
        raise ValueError(
            f"data: got {data!r}, which divides the channels; another axis, or None, is wanted"
        )
    # Explicit axes are those of jax.set_mesh, where it is one: see `mesh_here`.
    module.mesh = Mesh(mesh.devices, mesh.axis_names)
    module.layout = Layout(_split(mesh, data), (), _split(mesh, model))
    for param in (module.kernel, module.bias):
        value = None if param is None else param.get_value()
        if value is not None and value.shape[-1] % module.layout.model.parts == 0:
            last = [None] * (value.ndim - 1)
            spec = jax.sharding.PartitionSpec(*last, module.layout.model.axes or None)
            param.set_value(put_on_mesh(value, spec, module.mesh))


def _split(mesh: Mesh, axis: str | None) -> Split:
    parts = 1 if axis is None else mesh.shape[axis]
    return WHOLE if parts == 1 or axis is None else Split((axis,), (parts,))


def _call(module: Any, call: Any, inputs: Array, out_sharding: Any) -> Array:
    found = None
    if out_sharding is None and inputs.ndim >= 2:
        shape = jax.ShapeDtypeStruct(inputs.shape, inputs.dtype)
        found = traced_layer(lambda x: call(module, x), shape)
    if not found or not found[0][0].channels_apart:
        raise NotImplementedError(
            f"{type(module).__name__}: on an input of {inputs.dtype}{list(inputs.shape)} this is "
            "no layer whose channels can be divided; take Flax's own"
        )
    ((layer, params),) = found
    module.layout.local_shape(inputs.shape[0], inputs.shape[1:])  # raises where it does not fit
    form = ModelParallel(layer, module.layout)
    placed, mesh = form.placed(params), mesh_here(module.mesh, (params, inputs))
    specs = (jax.tree.map(form.spec, placed), module.layout.spec(inputs.ndim))
    run = jax.shard_map(form.apply, mesh=mesh, in_specs=specs, out_specs=specs[1])
    return run(*laid((placed, inputs), specs, mesh))
