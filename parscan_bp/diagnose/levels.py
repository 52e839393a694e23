"""How bad a number is: fine, beyond a threshold, infinite, NaN."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from parscan_bp.jaxprs.read import is_differentiable
from parscan_bp.types import Array

FINE, BEYOND, INFINITE, NAN = range(4)
WORDS = {BEYOND: "beyond the threshold", INFINITE: "infinite", NAN: "NaN"}


def levels(array: Any, threshold: float = math.inf) -> Array:
    """How bad each number of an array is; what has no tangents (ints, bools, keys) is fine.

    Example:
      >>> import jax.numpy as jnp
      >>> levels(jnp.array([1.0, -9.0, jnp.inf, jnp.nan]), threshold=3).tolist()
      [0, 1, 2, 3]
    """
    if not is_differentiable(jax.typeof(array)):
        return jnp.zeros(jnp.shape(array), jnp.int8)
    beyond = jnp.where(jnp.abs(array) > threshold, BEYOND, FINE)
    return jnp.where(jnp.isnan(array), NAN, jnp.where(jnp.isinf(array), INFINITE, beyond))


def of_each(arrays: Sequence[Any], threshold: float) -> Array:
    """How bad the worst number of each array is; ``None`` is fine."""

    def of_one(array):
        found = FINE if array is None else jnp.max(levels(array, threshold), initial=FINE)
        return jnp.asarray(found, jnp.int8)

    return jnp.stack([of_one(a) for a in arrays]) if arrays else jnp.zeros(0, jnp.int8)


def worst(array: Any, threshold: float = math.inf, at: int | None = None) -> tuple[int, int]:
    """How bad the worst number of an array is, or the one at a flat position; and where it is."""
    flat = np.asarray(levels(array, threshold)).reshape(-1)
    if at is None:
        at = int(np.argmax(flat)) if flat.size else 0
    return (int(flat[at]) if flat.size else FINE), at


def worst_entry(array: Any, threshold: float = math.inf) -> tuple[int, ...]:
    """The index of the first of the worst numbers of an array."""
    at = np.unravel_index(worst(array, threshold)[1], np.shape(array)) if np.size(array) else ()
    return tuple(map(int, at))


def firsts(found: np.ndarray, before: np.ndarray, stages: Sequence[int]) -> list[tuple[int, int]]:
    """For each of some levels the first row and column that gets as bad, and was not before.

    Args:
      found: levels, shape (rows, columns).
      before: levels of the columns before the first row, which are nobody's fault here.
      stages: the levels, rising.

    Returns:
      Rows and columns, each once, in the order of the levels.

    Example:
      >>> firsts(np.array([[0, 2], [3, 2]]), np.array([0, 0]), (INFINITE, NAN))
      [(0, 1), (1, 0)]
    """
    places = []
    for stage in stages:
        hits = np.argwhere((found >= stage) & (before < stage))
        if len(hits):
            places.append((int(hits[0][0]), int(hits[0][1])))
    return list(dict.fromkeys(places))
