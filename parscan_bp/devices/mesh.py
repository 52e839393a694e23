"""Where a mesh axis comes from, and whether a program already runs along it."""

from __future__ import annotations

from typing import Any

import jax
from jax import lax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from parscan_bp.arguments import described
from parscan_bp.types import PyTree


def check_axis(axis: Any, mesh: Any, name: str = "axis") -> None:
    """The check of a mesh axis, an argument of some name, and, where one is given, its mesh.

    Raises:
      TypeError: if ``axis`` is no name, or ``mesh`` no mesh.
      ValueError: if the mesh has no such axis.
    """
    if not isinstance(axis, str):
        raise TypeError(f"{name}: got {described(axis)}; the name of a mesh axis is wanted")
    if mesh is None:
        return
    if not isinstance(mesh, Mesh | AbstractMesh):
        raise TypeError(f"mesh: got {described(mesh)}; a jax.sharding.Mesh or None is wanted")
    if axis not in mesh.axis_names:
        raise ValueError(f"{name}: got {axis!r}; the mesh has the axes {tuple(mesh.axis_names)}")


def is_bound(axis: str) -> bool:
    """Whether the program runs on each device of the axis, as inside `jax.shard_map`.

    Example:
      >>> is_bound("time")
      False
    """
    try:
        lax.axis_size(axis)
    except NameError:
        return False
    return True


def find_mesh(axis: str, mesh: Any, tree: PyTree) -> Any:
    """The mesh with an axis: the one given, that of the arrays, or that of the context.

    A mesh whose axes are explicit is taken as an automatic one where the types of the arrays do not
    speak of it.

    Args:
      axis: its name.
      mesh: the mesh that the caller gave, or ``None``.
      tree: the arrays.

    Raises:
      TypeError: if there is none; or if arrays are sharded explicitly over another of its axes,
        and it is not the one of `jax.set_mesh`.
    """
    context = jax.sharding.get_abstract_mesh()
    if mesh is not None and axis in context.axis_names and context.manual_axes:
        return context  # the rest of a mesh along which the program runs already
    leaves = jax.tree.leaves(tree)
    if mesh is not None:
        if context.empty and not any(map(_explicit_axes, leaves)):
            return _automatic(mesh)
        _check_set(axis, leaves, context)
        return mesh
    for leaf in leaves:
        for sharding in (getattr(leaf, "sharding", None), jax.typeof(leaf).sharding):
            if isinstance(sharding, NamedSharding) and axis in sharding.mesh.axis_names:
                _check_set(axis, leaves, context)
                return sharding.mesh
    if axis in context.axis_names:
        return context
    raise TypeError(
        f"mesh: there is none with an axis {axis!r}: not given, not that of the arrays (of which "
        "jax.jit does not say it, unless their sharding is explicit), not the one of jax.set_mesh. "
        "Sharded(axis, mesh) names it; inside jax.shard_map or jax.pmap the axis itself is enough"
    )


def _explicit_axes(leaf: Any) -> set[str]:
    """The explicit mesh axes over which the type of an array divides it."""
    sharding = getattr(jax.typeof(leaf), "sharding", None)
    if not isinstance(sharding, NamedSharding):
        return set()
    return {name for part in sharding.spec if part is not None for name in _names(part)}


def _automatic(mesh: Any) -> Any:
    """A mesh whose axes are the compiler's; one without devices is left as it is."""
    if not isinstance(mesh, Mesh):
        return mesh
    kinds = (AxisType.Auto,) * len(mesh.axis_names)
    return Mesh(mesh.devices, mesh.axis_names, axis_types=kinds)


def _check_set(axis: str, leaves: list[Any], context: Any) -> None:
    others = sorted(set().union(*map(_explicit_axes, leaves)) - {axis})
    if others and context.empty:
        raise TypeError(
            f"mesh: arrays are sharded explicitly over its axes {others}, and it is not the one of "
            "jax.set_mesh; `with jax.set_mesh(mesh):` around the call is wanted"
        )


def divided(tree: PyTree, axis: str, mesh: Any, *, leading: bool) -> PyTree:
    """Arrays whose types say how they are spread, spread over an explicit axis as they have to be.

    Args:
      tree: the arrays.
      axis, mesh: which axis; one that is not explicit is left to the compiler.
      leading: whether the leading axes are divided over it, or nothing is.
    """
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    if kinds[axis] != AxisType.Explicit:
        return tree

    def spread(a):
        sharding = jax.typeof(a).sharding
        old = [_without(part, axis) for part in sharding.spec]
        old += [None] * (a.ndim - len(old))
        if leading:
            old[0] = axis if old[0] is None else (axis, *_names(old[0]))
        spec = PartitionSpec(*old)
        where = mesh if isinstance(mesh, Mesh) else None
        return jax.sharding.reshard(a, spec if where is None else NamedSharding(where, spec))

    return jax.tree.map(spread, tree)


def undivided(tree: PyTree, axis: str) -> PyTree:
    """The types of arrays whose leading axes are not divided over an explicit axis any more."""

    def typed(a):
        sharding = getattr(jax.typeof(a), "sharding", None)
        if sharding is None or not any(axis in _names(part) for part in sharding.spec[:1]):
            return a
        spec = PartitionSpec(_without(sharding.spec[0], axis), *sharding.spec[1:])
        kept = NamedSharding(sharding.mesh, spec)
        return jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=kept)

    return jax.tree.map(typed, tree)


def _names(part: Any) -> tuple[str, ...]:
    return part if isinstance(part, tuple) else (part,)


def _without(part: Any, axis: str) -> Any:
    if part is None:
        return None
    left = tuple(name for name in _names(part) if name != axis)
    return left[0] if len(left) == 1 else left or None
