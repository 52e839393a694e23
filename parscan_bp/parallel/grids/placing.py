"""On which mesh a stack runs, and arrays whose types say how they lie on it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from parscan_bp.types import Array, PyTree


def mesh_here(own: Mesh, tree: PyTree) -> Any:
    """The mesh of `jax.set_mesh`, or that of the arrays' types, if there is one; else its own.

    Args:
      own: that of the stack, whose axes are the compiler's.
      tree: the arrays.

    Raises:
      ValueError: inside of `jax.shard_map` or `jax.pmap`; if the mesh has other axes, or some that
        are explicit and some that are not.
    """
    context = jax.sharding.get_abstract_mesh()
    if context.manual_axes:
        raise ValueError(
            f"x: it is a device's own part, along the mesh axes {tuple(context.manual_axes)}; the "
            "call is to be outside of jax.shard_map and jax.pmap, where arrays are whole. Inside, "
            "Stack.on_device takes the parts"
        )
    mesh = _typed_mesh(tree) if context.empty else context
    if mesh is None or own.abstract_mesh in (mesh, getattr(mesh, "abstract_mesh", None)):
        return own
    if tuple(mesh.shape.items()) != tuple(own.shape.items()):
        raise ValueError(
            f"mesh: got one of {_listed(mesh)}, by jax.set_mesh or the types of the arrays; here "
            f"{_listed(own)} is wanted, in this order, explicit or not"
        )
    if set(mesh.axis_types) != {AxisType.Explicit}:
        raise ValueError(
            f"mesh: got axes of types {mesh.axis_types}; either all are explicit, or none"
        )
    return mesh


def _listed(mesh: Any) -> str:
    return ", ".join(f"{name}={size}" for name, size in mesh.shape.items())


def _typed_mesh(tree: PyTree) -> Any:
    """The mesh of arrays that are typed by one, with its devices where they are known."""
    for leaf in jax.tree.leaves(tree):
        for sharding in (getattr(leaf, "sharding", None), jax.typeof(leaf).sharding):
            if isinstance(sharding, NamedSharding) and is_explicit(sharding.mesh):
                return sharding.mesh
    return None


def is_explicit(mesh: Any) -> bool:
    """Whether types say how arrays lie on the mesh."""
    return AxisType.Explicit in mesh.axis_types


def laid(tree: PyTree, specs: PyTree, mesh: Any) -> PyTree:
    """Arrays that lie as the specs say, where types tell; else the compiler sees to it."""
    if not is_explicit(mesh):
        return tree
    lay = lambda leaf, spec: jax.sharding.reshard(leaf, NamedSharding(mesh, spec))  # noqa: E731
    return jax.tree.map(lay, tree, specs)


def put_on_mesh(tree: PyTree, specs: PyTree, own: Mesh) -> PyTree:
    """Copies of arrays on the devices of `mesh_here`, as the specs say: either may be donated."""
    mesh = mesh_here(own, tree)
    tree = jax.tree.map(jnp.copy, tree)  # a replica of an array may be the array
    if mesh is not own:
        return laid(tree, specs, mesh)
    lay = lambda leaf, spec: jax.device_put(leaf, NamedSharding(own, spec))  # noqa: E731
    return jax.tree.map(lay, tree, specs)


def cut(x: Array, dimension: int, size: int) -> Array:
    """The first ``size`` entries of an axis.

    An axis that is divided by its type is gathered before: no type divides what is left.
    """
    if x.shape[dimension] == size:
        return x
    sharding = jax.typeof(x).sharding
    spec = [*sharding.spec, *[None] * (x.ndim - len(sharding.spec))]
    if spec[dimension] is not None:
        spec[dimension] = None
        x = jax.sharding.reshard(x, NamedSharding(sharding.mesh, PartitionSpec(*spec)))
    return lax.slice_in_dim(x, 0, size, axis=dimension)
