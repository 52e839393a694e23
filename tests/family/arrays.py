"""Arrays of the numbers that NumPy has."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


def array(values: Any, dtype: Any = None) -> jax.Array:
    """`jnp.asarray` of numbers that NumPy has, without a program for each shape and dtype.

    Example:
      >>> array([1, 2], "float32").tolist()
      [1.0, 2.0]
    """
    values = np.asarray(values)
    kind = jax.dtypes.canonicalize_dtype(values.dtype if dtype is None else dtype)
    return jax.device_put(values.astype(kind))
