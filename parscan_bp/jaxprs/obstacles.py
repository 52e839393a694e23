"""What in the types of arrays keeps a solver from planning: symbolic sizes, shardings, `HiType`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from parscan_bp.jaxprs.hijax import is_hi_type
from parscan_bp.trees import is_sharded


def symbolic_size(avals: Iterable[Any], *sizes: Any) -> str | None:
    """A size of these types, or of ``sizes``, that is not a number yet; ``None`` if all are."""
    shapes = [getattr(aval, "shape", ()) for aval in avals]  # tokens have none
    found = [size for shape in (*shapes, sizes) for size in shape if not isinstance(size, int)]
    return f"the size {found[0]} is symbolic (jax.export)" if found else None


def hi_type(avals: Iterable[Any]) -> str | None:
    """A type whose values are no arrays; ``None`` if there is none."""
    found = next(filter(is_hi_type, avals), None)
    return None if found is None else f"{type(found).__name__} is a HiType, no type of arrays"


def explicit_sharding(avals: Iterable[Any]) -> str | None:
    """A type with an axis that is divided among devices; ``None`` if there is none."""
    found = [aval for aval in avals if is_sharded(aval)]
    return f"{found[0]} is sharded explicitly (jax.make_mesh)" if found else None


def replicated_output(outputs: Iterable[Any], inputs: Iterable[Any]) -> str | None:
    """An output that is the same along a mesh axis of `jax.shard_map` where an input is not.

    As by `jax.lax.psum`. A solver's tangents vary over the axes of all that they are made of.
    """
    axes = frozenset().union(*(aval.manual_axis_type.varying for aval in inputs))
    for aval in outputs:
        same = sorted(axes - aval.manual_axis_type.varying)
        if same:
            return (
                f"the output {aval} of the step is the same along the mesh axes {same} of "
                "jax.shard_map, and what it is made of is not"
            )
    return None
