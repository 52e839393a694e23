"""Arrays whose types say how they are spread over a mesh: explicit sharding (`jax.make_mesh`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from parscan_bp.trees import is_sharded


def check_unsharded(avals: Iterable[Any], solver: Any) -> None:
    """Refuses what a solver's products of joined arrays cannot do.

    Raises:
      NotImplementedError: if some type is sharded.
    """
    divided = [str(aval) for aval in avals if is_sharded(aval)]
    if divided:
        raise NotImplementedError(
            f"solver={solver!r}: derivatives of a chain take arrays on one device, inside "
            f"jax.shard_map, or on a mesh of automatic axes; got {divided[0]}, which is sharded "
            "explicitly (jax.make_mesh). solver=None leaves it to plain automatic differentiation"
        )
