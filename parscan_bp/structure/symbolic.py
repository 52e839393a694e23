"""Sizes that are not numbers yet: shape polymorphism, as under `jax.export`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jax.extend.core import JaxprEqn

from parscan_bp.structure.jaxprs import shape_of


def symbolic_size(sizes: Iterable[Any]) -> Any:
    """The first size that is not a number; ``None`` if all are."""
    return next((size for size in sizes if not isinstance(size, int)), None)


def symbolic_size_of_scan(eqn: JaxprEqn) -> Any:
    """Such a size of a `lax.scan`: its length, or of what goes in and comes out."""
    shapes = [shape_of(v) for v in (*eqn.invars, *eqn.outvars)]
    return symbolic_size([eqn.params["length"], *(size for shape in shapes for size in shape)])


def check_numeric(size: Any, solver: Any) -> None:
    """Refuses what a solver cannot do without numbers.

    Raises:
      NotImplementedError: unless ``size`` is ``None``.
    """
    if size is not None:
        raise NotImplementedError(
            f"solver={solver!r}: a solver plans its products and chunks by sizes, so every size "
            f"has to be a number; got the symbolic size {size} (jax.export). scan and chain "
            "with solver=None leave it to plain automatic differentiation"
        )
